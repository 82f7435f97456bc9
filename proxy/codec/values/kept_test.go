package values

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/test/require"
)

// successor is the codec of a proxy that takes the worker's proxy's place.
func (e *ends) successor(t *testing.T, path string, rules ...Rule) {
	t.Helper()
	require.NoError(t, e.worker.Flush(t.Context()))
	require.Value(e.worker.Save(path))(t)
	e.worker = require.Value(New(Options{Compact: compact.DefaultLimits, Rules: rules}))(t)
	require.Value(e.worker.Restore(path))(t)
	if _, err := os.Stat(path); err == nil {
		t.Fatal("the next proxy but one would take it up again")
	}
}

// Proxies are replaced again and again, by a planner's rules and by their own: no
// server gets a push that its worker did not make, and the sums come out. What
// PS_RESEND repeats to the next proxy counts once.
func TestWhatWaitsOutlivesTheProxy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values")
	for _, planned := range []bool{false, true} {
		rule := Rule{Threshold: 0.95}
		e := newEnds(t)
		e.worker.adds = false
		own := []Rule{rule}
		if planned {
			own = nil
		}
		set := func() {
			if planned {
				require.NoError(t, e.worker.SetPlanned([]Rule{rule}))
			}
		}
		e.successor(t, path, own...)
		set()
		r := rand.New(rand.NewPCG(5, 5))
		pushed, got := sums{}, sums{}
		w := e.dial(t, e.worker, e.server, "ps9")
		held := false
		for step := range 300 {
			q := pushes(r, step)
			pushed.add(q.keys, q.vals, q.lens)
			out := w.carry(t, q.frames())[2]
			got.add(q.keys, floats(out), q.lens)
			w.carry(t, request{timestamp: int32(1000 + step), pull: true, keys: q.keys}.frames())
			if step%30 != 29 {
				continue
			}
			held = held || e.worker.Waiting() > 0
			w.close()
			e.successor(t, path, own...)
			set()
			w = e.dial(t, e.worker, e.server, "ps9")
			if again := w.carry(t, q.frames())[2]; string(again) != string(out) {
				t.Fatalf("planned %v, step %d: a repeated push went otherwise than the first time", planned, step)
			}
		}
		if !held {
			t.Fatal("nothing ever waited")
		}
		require.NoError(t, e.worker.Flush(t.Context()))
		for k, v := range pushed {
			q := request{timestamp: 10_000 + int32(k%100_000), push: true, keys: []uint64{k}, vals: make([]float32, len(v))}
			got.add(q.keys, floats(w.carry(t, q.frames())[2]), nil)
		}
		w.close()
		if left := pushed.difference(got) + got.difference(pushed); left != 0 {
			t.Errorf("planned %v: sums are off by %v", planned, left)
		}
		if sent := w.own(t); len(sent) != 0 {
			t.Errorf("planned %v: %d pushes of our own", planned, len(sent))
		}
	}
}

// A file that is cut off or changed anywhere is set aside, said and never believed.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values")
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	e.worker.adds = false
	w := e.dial(t, e.worker, e.server, "ps9")
	r := rand.New(rand.NewPCG(1, 1))
	for step := range 6 {
		w.carry(t, pushes(r, step).frames())
	}
	w.close()
	if n, err := e.worker.Save(path); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	whole := require.Value(os.ReadFile(path))(t)
	for range 200 {
		bad := append([]byte(nil), whole...)
		switch at := r.IntN(len(bad)); r.IntN(3) {
		case 0:
			bad = bad[:at]
		case 1:
			bad[at] ^= 1 << r.IntN(8)
		case 2:
			clear(bad[at:min(at+4096, len(bad))])
			bad[at] ^= 0x40
		}
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		c := require.Value(New(Options{Compact: compact.DefaultLimits}))(t)
		if n, err := c.Restore(path); n != 0 || err == nil || !strings.Contains(err.Error(), path) {
			t.Fatalf("%d streams, %v", n, err)
		}
		if c.Waiting() != 0 || c.Counts().Streams != 0 {
			t.Fatal("part of a damaged file was taken up")
		}
		require.Value(os.Stat(path + ".damaged"))(t)
	}
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	c := require.Value(New(Options{Compact: compact.DefaultLimits}))(t)
	if n, err := c.Restore(path); n != 1 || err != nil || c.Waiting() != e.worker.Waiting() {
		t.Errorf("%d streams, %v, %v of %v waits", n, err, c.Waiting(), e.worker.Waiting())
	}
	require.Value(New(Options{Compact: compact.DefaultLimits, StateBytes: 1000}))(t)
}

// closeUnder closes the descriptor of a file, whose owner's own closing fails then.
func closeUnder(t *testing.T, path string) {
	t.Helper()
	fds := require.Value(os.ReadDir("/proc/self/fd"))(t)
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err != nil || to != path {
			continue
		}
		n, err := strconv.Atoi(fd.Name())
		if err == nil {
			err = unix.Close(n)
		}
		require.NoError(t, err)
		return
	}
	t.Fatalf("%s is not open", path)
}

// A file that cannot be released to the next proxy costs no other worker its residuals.
func TestSaveAfterAFailedRelease(t *testing.T) {
	folder, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	e := newEnds(t)
	rules := []Rule{{Unpulled: true, Threshold: 0.9}}
	e.worker = require.Value(New(Options{Compact: compact.DefaultLimits, Rules: rules, Folder: folder}))(t)
	push := func(server string) float64 {
		w := e.dialServer(t, netip.MustParseAddrPort(server), nil)
		defer w.close()
		before := e.worker.Waiting()
		w.carry(t, whole(rand.New(rand.NewPCG(3, 3)), 1).frames())
		return e.worker.Waiting() - before
	}
	push("198.18.0.2:9000")
	e.worker.folder = "" // what comes now is in memory alone
	want := push("198.18.0.3:9000")
	for _, st := range e.worker.streams {
		if st.file != nil {
			closeUnder(t, st.file.Path())
		}
	}
	path := filepath.Join(t.TempDir(), "values")
	if n, err := e.worker.Save(path); n != 1 || !errors.Is(err, unix.EBADF) {
		t.Errorf("%d streams are saved, with %v; want 1, and why the file could not be released", n, err)
	}
	next := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: rules}))(t)
	if n, err := next.Restore(path); n != 1 || err != nil || next.Waiting() != want || want == 0 {
		t.Errorf("the next proxy has %d streams, %v; %v waits, want %v", n, err, next.Waiting(), want)
	}
}

// A kept layer of which only the first keys can be taken up leaves one that the next
// push finds whole.
func TestTakeUpOfAPart(t *testing.T) {
	c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Threshold: 0.9}}}))(t)
	st := c.join(owner{node: "ps9", server: netip.MustParseAddrPort("198.18.0.1:9100")}, true)
	if st == nil {
		t.Fatal("there is no room for a stream")
	}
	defer c.leave(st)
	st.mu.Lock()
	defer st.mu.Unlock()
	// The second key has no place.
	n := &keptNarrow{First: 0, Last: 99, Kind: byte(element.Float32), Keys: []uint64{1, 2}, Places: []uint32{1, 0}, Widths: []uint32{3, 3}, Residual: make([]byte, 24)}
	if st.takeUpNarrow(n) {
		t.Fatal("a layer with a key without a place was taken up")
	}
	for id, l := range st.narrow {
		if l.Len() != l.index.values || l.Len() != 3 {
			t.Errorf("layer %v has %d values, its index %d, want 3", id, l.Len(), l.index.values)
		}
	}
	if len(st.narrow) != 1 {
		t.Errorf("%d layers, want 1", len(st.narrow))
	}
}
