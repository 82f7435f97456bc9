package values

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/codec/compact"
)

// wandering is a worker whose keys move between servers, while the proxy on its host
// is killed now and then.
type wandering struct {
	t       *rapid.T
	d       *doomed
	e       *ends
	servers []netip.AddrPort
	ways    []*way
	owners  map[uint64]int32 // of keys that have moved
	stamp   int32

	pushed, got sums
}

// width is how many values a key has.
func width(key uint64) int {
	switch {
	case key < 100:
		return 1
	case key < 120:
		return 16
	}
	return 600
}

func (w *wandering) owner(key uint64) int32 {
	if o, ok := w.owners[key]; ok {
		return o
	}
	return int32(key % uint64(len(w.servers)))
}

// begin begins a proxy, after one that was killed.
func (w *wandering) begin() {
	w.d.begin()
	w.e.worker = w.d.codec
	w.ways = nil
	for _, at := range w.servers {
		w.ways = append(w.ways, w.e.dialServer(w.d.t, at, nil))
	}
}

// until does something until no kill comes in between.
func (w *wandering) until(do func()) {
	for w.d.mayDie(do) {
		w.begin()
		for w.d.mayDie(func() { w.follow(nil) }) { // it is known where keys are
			w.begin()
		}
	}
}

func (w *wandering) follow(keys []plan.Keys) {
	w.d.codec.Follow("here", 9, w.servers, keys, w.owner)
}

// push pushes keys, each to its owner, and repeats what a kill kept from going.
func (w *wandering) push(r *rand.Rand, keys []uint64, zeros bool) {
	for rank := range w.servers {
		for lo, hi := range map[uint64]uint64{0: 100, 100: 120, 120: 1000} {
			q := request{timestamp: w.stamp, push: true}
			for _, k := range keys {
				if w.owner(k) != int32(rank) || k < lo || k >= hi {
					continue
				}
				q.keys = append(q.keys, k)
				for range width(k) {
					v := float32(0)
					if !zeros {
						v = float32(r.IntN(9) - 4)
					}
					q.vals = append(q.vals, v)
				}
			}
			if len(q.keys) == 0 {
				continue
			}
			w.stamp++
			w.pushed.add(q.keys, q.vals, nil)
			var first []byte
			w.until(func() {
				out := w.ways[rank].carry(w.d.t, q.frames())[2]
				if first == nil {
					first = out
					w.got.add(q.keys, floats(out), nil)
				} else if !bytes.Equal(first, out) {
					w.t.Fatalf("push %d was repeated with other values", q.timestamp)
				}
			})
		}
	}
}

// move gives some keys another owner.
func (w *wandering) move(keys []uint64, to int32) {
	var ranges []plan.Keys
	for _, k := range keys {
		w.owners[k] = to
		ranges = append(ranges, plan.One(k))
	}
	w.until(func() { w.follow(ranges) })
}

// misplaced returns the keys of which something waits for a server that does not
// own them.
func (w *wandering) misplaced() (all []string) {
	for o, st := range w.d.codec.streams {
		rank := int32(slices.Index(w.servers, o.server))
		for key := range st.dense {
			if w.owner(key) != rank {
				all = append(all, fmt.Sprint("key ", key, " at server ", rank))
			}
		}
		for _, l := range st.narrow {
			for _, c := range l.index.cells {
				if c.place != 0 && w.owner(c.key) != rank && l.holds(&c) {
					all = append(all, fmt.Sprint("key ", c.key, " at server ", rank))
				}
			}
		}
	}
	return all
}

// Whatever is pushed while keys move, and however often the proxy is killed, also
// while something is on its way from one stream's file to another's: what waits of
// a key is for the server that owns it, counts once, and in the end the sums are
// those of what was pushed, exactly.
func TestWhatWaitsFollowsItsKey(t *testing.T) {
	kills, moved := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		w := &wandering{t: rt, e: newEnds(t), owners: map[uint64]int32{}, pushed: sums{}, got: sums{}}
		for i := range 3 {
			w.servers = append(w.servers, netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), uint16(9000+i)))
		}
		folder := filepath.Join(folderInMemory(t), "state")
		if rapid.IntRange(0, 9).Draw(rt, "folder") == 0 {
			folder = "" // what waits is in memory alone, and no proxy is killed
		}
		w.d = &doomed{t: t, r: r, folder: folder, rules: []Rule{{Unpulled: true, Threshold: 0.9, Lifespan: 3, Layers: []Range{{0, 49}}}}}
		if folder == "" {
			w.d.r = rand.New(never{})
		}
		w.begin()
		all := rapid.SliceOfNDistinct(rapid.OneOf(rapid.Uint64Range(0, 119), rapid.Uint64Range(120, 122)), 1, 60, rapid.ID[uint64]).Draw(rt, "keys")
		slices.Sort(all)
		some := func(what string) (keys []uint64) {
			for i, k := range all {
				if rapid.Bool().Draw(rt, fmt.Sprint(what, i)) {
					keys = append(keys, k)
				}
			}
			return keys
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1, 2:
				w.push(r, some("push"), false)
			case 3:
				before := w.d.codec.Waiting()
				w.move(some("move"), rapid.Int32Range(0, 2).Draw(rt, "to"))
				if after := w.d.codec.Waiting(); before != after {
					rt.Fatalf("%v waited before keys moved, %v after", before, after)
				} else if after > 0 {
					moved++
				}
			case 4:
				if folder != "" {
					w.d.kill()
					w.until(w.begin)
					w.until(func() { w.follow(nil) })
				}
			}
			if wrong := w.misplaced(); len(wrong) > 0 {
				rt.Fatalf("what waits of %v", wrong)
			}
		}
		w.d.rules = nil
		if err := w.d.codec.SetRules(nil); err != nil {
			rt.Fatal(err)
		}
		w.push(r, all, true)
		w.push(r, all, true)
		if off := w.pushed.difference(w.got) + w.got.difference(w.pushed); off != 0 || w.d.codec.StillWaiting() > 0 {
			rt.Fatalf("sums are off by %v after %d kills, and %d values wait", off, w.d.kills, w.d.codec.StillWaiting())
		}
		kills += w.d.kills
		for _, w := range w.ways {
			w.close()
		}
		for _, st := range w.d.codec.streams {
			if st.file != nil {
				st.file.Remove()
			}
		}
	})
	if kills == 0 || moved == 0 {
		t.Errorf("%d kills, something waited in %d moves: too little to tell anything", kills, moved)
	}
}

// never has nothing happen by chance.
type never struct{}

func (never) Uint64() uint64 { return 1 << 63 }

// The servers between which onItsWay moves keys.
var fromAndTo = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:9000"), netip.MustParseAddrPort("198.18.0.3:9000")}

// followAll has all keys be with the second server.
func followAll(c *Codec) { c.Follow("here", 9, fromAndTo, nil, func(uint64) int32 { return 1 }) }

// onItsWay is a proxy that is killed at such a store while all keys move to a server; 0: it is
// not killed.
func onItsWay(t *testing.T, fuse int) (d *doomed, killed bool) {
	e := newEnds(t)
	d = &doomed{t: t, r: rand.New(never{}), folder: filepath.Join(folderInMemory(t), "state"), rules: []Rule{{Unpulled: true, Threshold: 0.99}}}
	d.begin()
	e.worker = d.codec
	for i, to := range fromAndTo {
		w := e.dialServer(t, to, nil)
		w.carry(t, whole(rand.New(rand.NewPCG(uint64(i), 9)), 1).frames())
	}
	d.fuse = fuse
	defer func() {
		killed, d.fuse = recover() != nil, 0
	}()
	followAll(d.codec)
	return d, false
}

// What was on its way between two files when a proxy was killed arrives once, with
// whichever of the two the next proxy begins.
func TestOnItsWayBetweenFiles(t *testing.T) {
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	for fuse := 1; ; fuse++ {
		for first := range fromAndTo {
			d, killed := onItsWay(t, fuse)
			d.kill()
			if !killed {
				if fuse < 8 {
					t.Errorf("%d stores are too few to tell anything", fuse-1)
				}
				return
			}
			c, err := New(Options{Compact: compact.DefaultLimits, Folder: d.folder})
			if err != nil {
				t.Fatal(err)
			}
			o := owner{"here", "ps9", fromAndTo[first], 0, 0}
			for _, prefix := range []string{o.fileName(), ""} {
				if _, err := c.takeOver(prefix); err != nil {
					t.Fatal(err)
				}
			}
			followAll(c)
			if n, sum := c.StillWaiting(), c.Waiting(); n != want || sum != squares {
				t.Errorf("killed at store %d, server %d first: %d values wait, of squares %v, want %d of %v", fuse, first, n, sum, want, squares)
			}
			for o, st := range c.streams {
				if n, _ := st.residual(); n > 0 && o.server != fromAndTo[1] {
					t.Errorf("killed at store %d: %d values wait for %v", fuse, n, o.server)
				}
				if st.file != nil {
					st.file.Remove()
				}
			}
		}
	}
}

// A proxy is killed while keys move, the next one while it takes over, and the one after
// that as well, each between any two of its stores, and whatever order the files' names
// have: nothing is lost, and nothing counts twice.
func TestKilledTwiceWhileTakingOver(t *testing.T) {
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	cases := 0
	const fuse = 4 // something is on its way then
	for second, died := 1, true; died; second++ {
		died = false
		for third, again := 1, true; again; third++ {
			cases++
			d, _ := onItsWay(t, fuse)
			d.kill()
			for _, at := range []int{second, third} {
				renamed(t, d.folder, uint64(cases))
				if again = d.restored(at); !again {
					break
				}
				died = true
			}
			if again {
				d.restored(0)
			}
			followAll(d.codec)
			if n, sum := d.codec.StillWaiting(), d.codec.Waiting(); n != want || sum != squares {
				t.Fatalf("killed at store %d, then at %d and %d: %d values wait, of squares %v, want %d of %v", fuse, second, third, n, sum, want, squares)
			}
			d.kill()
		}
	}
	if cases < 500 {
		t.Errorf("%d cases are too few to tell anything", cases)
	}
}

// restored begins a proxy that is killed at such a store while it takes over; 0: it is not.
func (d *doomed) restored(fuse int) (killed bool) {
	c, err := New(Options{Compact: compact.DefaultLimits, Rules: d.rules, Folder: d.folder})
	if err != nil {
		d.t.Fatal(err)
	}
	c.stepped, d.codec, d.fuse = d.step, c, fuse
	defer func() {
		if p := recover(); p == errKilled {
			d.kill()
			killed = true
		} else if p != nil {
			panic(p)
		}
		d.fuse = 0
	}()
	if _, err := c.Restore(""); err != nil {
		d.t.Fatal(err)
	}
	return false
}

// renamed gives the files of a folder other names, and with them another order.
func renamed(t *testing.T, folder string, seed uint64) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, uint64(len(entries))))
	for _, e := range entries {
		prefix, _, _ := strings.Cut(e.Name(), "-")
		to := fmt.Sprintf("%s-%016x%s", prefix, r.Uint64(), fileSuffix)
		if err := os.Rename(filepath.Join(folder, e.Name()), filepath.Join(folder, to)); err != nil {
			t.Fatal(err)
		}
	}
}

// stuck is a folder whose files cannot be removed for a while.
type stuck struct {
	t     *testing.T
	files []string
	held  bool
}

// hold has the removal of the files fail from now on: others are under their names.
func (s *stuck) hold() {
	if s.held {
		return
	}
	s.held = true
	for _, path := range s.files {
		err := os.Rename(path, path+".aside")
		if err == nil {
			err = os.MkdirAll(filepath.Join(path, "not empty"), 0o700)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// release gives the files their names back.
func (s *stuck) release() {
	if !s.held {
		return
	}
	for _, path := range s.files {
		err := os.RemoveAll(path)
		if err == nil {
			err = os.Rename(path+".aside", path)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// What is in the files of a killed proxy, and what was on its way between them, counts once
// also where the next proxy cannot remove them: they are found again by the one after it.
func TestFilesThatCannotBeRemoved(t *testing.T) {
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	for fuse := 1; ; fuse++ {
		d, killed := onItsWay(t, fuse)
		d.kill()
		if !killed {
			if fuse < 8 {
				t.Errorf("%d stores are too few to tell anything", fuse-1)
			}
			return
		}
		s := &stuck{t: t}
		for _, refused := range []bool{true, false} {
			c, err := New(Options{Compact: compact.DefaultLimits, Folder: d.folder})
			if err != nil {
				t.Fatal(err)
			}
			d.codec = c
			if refused {
				if s.files, err = filepath.Glob(filepath.Join(d.folder, "*"+fileSuffix)); err != nil {
					t.Fatal(err)
				}
				c.stepped = s.hold // once all files are open, with the first store of what they hold
			}
			_, err = c.takeOver("")
			s.release()
			if (err != nil) != refused {
				t.Fatalf("killed at store %d, files cannot be removed: %v; they are taken over with %v", fuse, refused, err)
			}
			s.held = false
			if refused {
				d.kill()
			}
		}
		followAll(d.codec)
		if n, sum := d.codec.StillWaiting(), d.codec.Waiting(); n != want || sum != squares {
			t.Errorf("killed at store %d: %d values wait, of squares %v, want %d of %v", fuse, n, sum, want, squares)
		}
		for _, st := range d.codec.streams {
			if st.file != nil {
				st.file.Remove()
			}
		}
	}
}

// What is in a file that cannot be removed counts once, however often the same proxy looks for
// files: the note that it was taken over is in a file that this proxy has in use, and is gone
// once that file is.
func TestFileThatStaysIsTakenOverOnce(t *testing.T) {
	d, _ := onItsWay(t, 0)
	want, squares := d.codec.StillWaiting(), d.codec.Waiting()
	d.kill()
	c, err := New(Options{Compact: compact.DefaultLimits, Folder: d.folder})
	if err != nil {
		t.Fatal(err)
	}
	d.codec = c
	s := &stuck{t: t}
	if s.files, err = filepath.Glob(filepath.Join(d.folder, "*"+fileSuffix)); err != nil || len(s.files) == 0 {
		t.Fatal(s.files, err)
	}
	c.stepped = s.hold
	if _, err := c.Restore(""); err == nil {
		t.Fatal("the files were removed")
	}
	s.release()
	for range 3 {
		if n, err := c.Restore(""); n != 0 || err != nil {
			t.Errorf("%d streams are taken over again, with error %v", n, err)
		}
	}
	if n, sum := c.StillWaiting(), c.Waiting(); n != want || sum != squares {
		t.Errorf("%d values wait, of squares %v, want %d of %v", n, sum, want, squares)
	}
	for _, path := range s.files {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, st := range c.streams {
		if st.file != nil {
			st.file.Remove()
		}
	}
}

// unsettled are routes with keys on their way, a few times that it is asked.
type unsettled struct {
	codec *Codec
	left  int
	early bool // it was asked before it was said that something is sent
}

func (*unsettled) Whole(int32) (int32, bool) { return 0, false }
func (u *unsettled) Settled() bool {
	u.early = u.early || !u.codec.Sends("here", 9)
	u.left--
	return u.left < 0
}

// A last push waits for keys that are on their way between servers, and says before
// that it is to come: none sets out meanwhile.
func TestFlushWaitsForKeys(t *testing.T) {
	for _, left := range []int{3, 1 << 30} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
			routes := &unsettled{codec: e.worker, left: left}
			up, down := e.dialServer(t, netip.MustParseAddrPort("198.18.0.2:9000"), routes), e.dial(t, e.server, e.worker, "ps8")
			defer up.close()
			defer down.close()
			up.carry(t, pushes(rand.New(rand.NewPCG(7, 7)), 2).frames())
			ctx, cancel := context.WithTimeout(t.Context(), barrierPatience)
			defer cancel()
			began, waited := time.Now(), e.worker.StillWaiting()
			err := e.worker.Flush(ctx)
			sent := len(up.own(t))
			if settles := left == 3; settles != (sent > 0) || err == nil || settles != (e.worker.StillWaiting() == 0) || waited == 0 {
				t.Errorf("%d questions: %d pushes went, %d of %d values wait, %v", left, sent, e.worker.StillWaiting(), waited, err)
			}
			if routes.early || e.worker.Sends("here", 9) || time.Since(began) < 3*settleAgain {
				t.Errorf("it was asked too early: %v, it still sends: %v", routes.early, e.worker.Sends("here", 9))
			}
		})
	}
}
