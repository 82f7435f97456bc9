package values

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/test/require"
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
		require.NoError(rt, w.d.codec.SetRules(nil))
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

// unsettled are routes with keys on their way, a few times that it is asked.
type unsettled struct {
	codec *Codec
	left  int
	early bool // it was asked before it was said that something is sent
}

func (*unsettled) Whole(int32) (int32, bool) { return 0, false }
func (*unsettled) Assigns() bool             { return false }
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
