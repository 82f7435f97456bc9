package values

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/test/require"
)

// doomed is a proxy's codec that is killed now and then between two stores: what is
// in its folder then is all that its successor has.
type doomed struct {
	t      *testing.T
	r      *rand.Rand
	rules  []Rule
	folder string
	n      int
	codec  *Codec
	fuse   int // stores until the kill; 0: none
	kills  int
}

var errKilled = errors.New("killed")

// begin starts a successor, which may be killed while it takes over.
func (d *doomed) begin() {
	d.t.Helper()
	for killed := true; killed; {
		c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: d.rules, Folder: d.folder}))(d.t)
		c.stepped = d.step
		d.codec = c
		killed = d.mayDie(func() {
			require.Value(c.Restore(""))(d.t)
		})
	}
}

// step kills where the fuse has burnt down.
func (d *doomed) step() {
	if d.fuse == 0 {
		return
	}
	if d.fuse--; d.fuse == 0 {
		panic(errKilled)
	}
}

// mayDie does something, in the midst of which the proxy may be killed.
func (d *doomed) mayDie(do func()) (killed bool) {
	d.fuse = 0
	if d.r.IntN(4) == 0 {
		d.fuse = 1 + d.r.IntN(15)
	}
	defer func() {
		if p := recover(); p == errKilled {
			d.kill()
			killed = true
		} else if p != nil {
			panic(p)
		}
		d.fuse = 0
	}()
	do()
	return false
}

// kill leaves a copy of the folder, whose files nobody has.
func (d *doomed) kill() {
	d.t.Helper()
	d.kills++
	d.n++
	next := filepath.Join(filepath.Dir(d.folder), fmt.Sprint("state", d.n))
	if err := os.CopyFS(next, os.DirFS(d.folder)); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Fatal(err)
	}
	for _, st := range d.codec.streams {
		if st.file != nil {
			st.file.Remove()
		}
	}
	d.folder = next
}

// folderInMemory is where many files are written fast.
func folderInMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "values-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// zeros are pushes of zeros for all keys of some sums, in which what waits goes.
func zeros(of sums) (all []request) {
	byWidth := map[int][]uint64{}
	for k, v := range of {
		byWidth[len(v)] = append(byWidth[len(v)], k)
	}
	for width, keys := range byWidth {
		slices.Sort(keys)
		all = append(all, request{timestamp: int32(10_000 + len(all)), push: true, keys: keys, vals: make([]float32, width*len(keys))})
	}
	return all
}

// A proxy is killed again and again, between any two of its stores, in the midst
// of pushes and of taking over; the worker repeats what was not answered. Each push
// counts once, repeats are what the first was, and the sums come out.
func TestKilledAgainAndAgain(t *testing.T) {
	for _, rule := range []Rule{
		{Unpulled: true, Threshold: 0.95},
		{Threshold: 0.99},
		{Unpulled: true, Threshold: 0.9, Layers: []Range{{0, 499}, {500, 1999}}, Lifespan: 5},
	} {
		e := newEnds(t)
		r := rand.New(rand.NewPCG(7, 7))
		d := &doomed{t: t, r: r, rules: []Rule{rule}, folder: filepath.Join(folderInMemory(t), "state")}
		var w *way
		begin := func() {
			d.begin()
			w = e.dial(t, d.codec, e.server, "ps9")
		}
		begin()
		pushed, got := sums{}, sums{}
		most := 0.0
		push := func(q request) {
			frames := q.frames()
			pushed.add(q.keys, q.vals, q.lens)
			var first []byte
			for {
				var out []byte
				if d.mayDie(func() { out = w.carry(t, frames)[2] }) {
					begin()
					continue
				}
				if first == nil {
					first = out
					got.add(q.keys, floats(out), q.lens) // the first that arrives counts
				} else if !bytes.Equal(first, out) {
					t.Fatalf("push %d was repeated with other values", q.timestamp)
				}
				if r.IntN(6) > 0 {
					return
				}
				if r.IntN(2) == 0 { // after all was sent
					d.kill()
					begin()
				}
			}
		}
		for step := range 120 {
			q := pushes(r, step)
			push(q)
			for d.mayDie(func() {
				w.carry(t, request{timestamp: int32(5000 + step), pull: true, keys: q.keys}.frames())
			}) {
				begin()
			}
			most = max(most, d.codec.Waiting())
			if missing := pushed.difference(got); step%30 == 29 && (missing > 0) != (d.codec.Waiting() > 0) {
				t.Fatalf("step %d: %v is missing, and %v waits", step, missing, d.codec.Waiting())
			}
		}
		if most == 0 || d.kills < 20 {
			t.Fatalf("%d kills, at most %v waited: too little to tell anything", d.kills, most)
		}
		d.rules = nil
		d.kill()
		begin()
		for _, q := range zeros(pushed) {
			push(q)
		}
		if off := pushed.difference(got) + got.difference(pushed); off != 0 {
			t.Errorf("%+v: sums are off by %v after %d kills", rule, off, d.kills)
		}
		if n := d.codec.Counts().Reasons[ReasonMemoryOnly]; n > 0 {
			t.Errorf("%d layers were in memory alone", n)
		}
	}
}

// Two proxies one after the other have pushes of one worker, as when one ends while
// the next has begun: what waits in both comes together.
func TestProxiesThatOverlap(t *testing.T) {
	folder := t.TempDir()
	e := newEnds(t)
	rule := Rule{Unpulled: true, Threshold: 0.95}
	open := func() (*Codec, *way) {
		c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{rule}, Folder: folder}))(t)
		return c, e.dial(t, c, e.server, "ps9")
	}
	r := rand.New(rand.NewPCG(2, 2))
	pushed, got := sums{}, sums{}
	push := func(w *way, q request) {
		pushed.add(q.keys, q.vals, q.lens)
		got.add(q.keys, floats(w.carry(t, q.frames())[2]), q.lens)
	}
	old, before := open()
	for step := range 30 {
		push(before, pushes(r, step))
	}
	next, after := open()
	for step := 30; step < 60; step++ {
		push(after, pushes(r, step))
		push(before, pushes(r, step+100))
	}
	require.NoError(t, old.Flush(t.Context()))
	before.close()
	if n, err := next.Restore(""); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := next.Restore(""); n != 0 || err != nil {
		t.Fatal("it was taken up again", n, err)
	}
	next.SetRules(nil)
	for _, q := range zeros(pushed) {
		push(after, q)
	}
	if off := pushed.difference(got) + got.difference(pushed); off != 0 {
		t.Errorf("sums are off by %v", off)
	}
}

// Somebody cuts a stream's file: what waited is lost, which is counted, and the
// worker's pushes go on as they are.
func TestFileIsCut(t *testing.T) {
	folder := t.TempDir()
	e := newEnds(t)
	c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.9}}, Folder: folder}))(t)
	w := e.dial(t, c, e.server, "ps9")
	r := rand.New(rand.NewPCG(4, 4))
	for step := range 9 {
		w.carry(t, pushes(r, step).frames())
	}
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 1 || !strings.HasSuffix(files[0].Name(), fileSuffix) {
		t.Fatal(files, err)
	}
	require.NoError(t, os.Truncate(filepath.Join(folder, files[0].Name()), 0))
	for step := 9; step < 30; step++ {
		w.carry(t, pushes(r, step).frames())
	}
	if n := c.Counts().Reasons[ReasonDamaged]; n != 1 {
		t.Errorf("damage was counted %d times", n)
	}
	w.close()
	if _, err := c.Save(""); c.Waiting() > 0 && err == nil {
		t.Error("what waits is lost without a word")
	}
}

// A file that was changed is set aside, said, counted and not believed.
func TestDamagedStream(t *testing.T) {
	folder := t.TempDir()
	e := newEnds(t)
	open := func() *Codec {
		c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.9}}, Folder: folder}))(t)
		return c
	}
	c := open()
	w := e.dial(t, c, e.server, "ps9")
	w.carry(t, pushes(rand.New(rand.NewPCG(4, 4)), 0).frames())
	w.close()
	require.Value(c.Save(""))(t)
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	path := filepath.Join(folder, files[0].Name())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[4096] ^= 1 // the first extent
	require.NoError(t, os.WriteFile(path, text, 0o600))
	next := open()
	if n, err := next.Restore(""); n != 0 || err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%d streams, %v", n, err)
	}
	if n := next.Counts().Reasons[ReasonDamaged]; n != 1 || next.Waiting() != 0 {
		t.Errorf("counted %d times; %v waits", n, next.Waiting())
	}
	if files, err = os.ReadDir(folder); err != nil || len(files) != 1 || files[0].Name() != damaged {
		t.Error(files, err)
	}
}

// Where the folder cannot be written, all is as without one, and counted.
func TestNoFolderIsCounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	e := newEnds(t)
	c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.9}}, Folder: file}))(t)
	w := e.dial(t, c, e.server, "ps9")
	pushed, got := sums{}, sums{}
	r := rand.New(rand.NewPCG(4, 4))
	for step := range 30 {
		q := pushes(r, step)
		pushed.add(q.keys, q.vals, q.lens)
		got.add(q.keys, floats(w.carry(t, q.frames())[2]), q.lens)
	}
	if pushed.difference(got) == 0 || c.Counts().Reasons[ReasonMemoryOnly] == 0 {
		t.Error("nothing waits, or it was not counted that it would not survive a kill")
	}
}
