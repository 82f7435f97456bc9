package values

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/proxy/route"
)

// wholes are the requests of which messages are parts, as a router knows them.
type wholes map[int32]int32

func (w wholes) Whole(part int32) (timestamp int32, ok bool) {
	timestamp, ok = w[part]
	return timestamp, ok
}

func (w wholes) Settled() bool { return true }
func (w wholes) Assigns() bool { return false }

// Where keys are displaced a push comes to a server in several parts, and to some
// servers not at all. What is counted are the worker's pushes: the share that goes
// is that of pushes which are whole, and with the push that was named all has gone,
// wherever anything comes then.
func TestPartsAreOnePush(t *testing.T) {
	const parts, until, least = 4, 120, 50
	for _, rule := range []Rule{{Unpulled: true, Threshold: 0.99, Until: until}, {Unpulled: true, Threshold: 0.99, Warmup: 40}} {
		e := newEnds(t, rule)
		of := wholes{}
		var ways []*way
		for server := range 2 {
			w := e.dialServer(t, netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), uint16(9000+server)), of)
			defer w.close()
			ways = append(ways, w)
		}
		r := rand.New(rand.NewPCG(3, 3))
		own, sent := route.FirstOwn, make([]int, until+10)
		pushed, got := sums{}, sums{}
		for step := range sent {
			for server, w := range ways {
				if server == 1 && step%3 != 2 && step < until {
					continue // it has none of this push's keys
				}
				for part := range parts {
					own++
					of[own] = int32(step)
					q := request{timestamp: own, push: true}
					for k := range 250 {
						q.keys = append(q.keys, uint64(10_000*server+parts*k+part))
						q.vals = append(q.vals, float32(int(r.NormFloat64()*64)))
					}
					out := floats(w.carry(t, q.frames())[2])
					pushed.add(q.keys, q.vals, nil)
					got.add(q.keys, out, nil)
					for _, v := range out {
						if v != 0 && server == 0 {
							sent[step]++
						}
					}
				}
			}
		}
		from, to := least, until/2
		if rule.Until == 0 {
			if sent[2] < 500 || sent[25] < 20 {
				t.Errorf("in a warm-up of 40 pushes %v of 1000 values went", sent[:40])
			}
			to = until
		} else if left := pushed.difference(got); left != 0 {
			t.Errorf("%v is missing %d pushes after the end", left, len(sent)-until)
		}
		n := 0
		for _, v := range sent[from:to] {
			n += v
		}
		if share := float64(n) / float64(1000*(to-from)); share < 0.005 || share > 0.02 {
			t.Errorf("%+v: of what came in parts %.3f went at once, want 0.01", rule, share)
		}
	}
}

// Parts may be late, and proxies start over: a push is counted once all the same.
func TestPushesAreCountedOnce(t *testing.T) {
	s := &steps{layers: map[layerID]*stepped{}}
	id := layerID{Range: Range{Last: 9}}
	for i, c := range []struct {
		timestamp    int32
		before, want int
	}{{5, 0, 1}, {5, 1, 1}, {7, 1, 2}, {5, 2, 2}, {8, 40, 41}, {7, 12, 41}, {8, 0, 41}, {9, 0, 42}} {
		if got := s.note(id, pushPart{timestamp: c.timestamp}, c.before); got != c.want {
			t.Errorf("push %d, timestamp %d: it is number %d, want %d", i, c.timestamp, got, c.want)
		}
	}
	for i := range int32(3 * lastSteps) {
		if got := s.note(id, pushPart{timestamp: 100 + i}, 0); got != 43+int(i) {
			t.Fatalf("push %d is number %d", i, got)
		}
	}
	if n := len(s.layers[id].last); n != lastSteps {
		t.Errorf("%d timestamps are remembered, want %d", n, lastSteps)
	}
}

// Who pushes each key by itself makes a step of all its keys, in whatever order, to
// whichever servers; pushes of several keys are a step each, also where one server
// gets one key of them, before the others or after.
func TestStepsOfOneKeyEach(t *testing.T) {
	id := layerID{Range: Range{Last: 1 << 20}}
	timestamp := int32(0)
	note := func(s *steps, key uint64, alone bool, before int) int {
		timestamp++
		return s.note(id, pushPart{timestamp, key, alone}, before)
	}
	r := rand.New(rand.NewPCG(5, 5))
	s := &steps{layers: map[layerID]*stepped{}}
	for step := 1; step <= 20; step++ {
		for _, key := range r.Perm(30) {
			if got := note(s, uint64(key), true, 0); got != step {
				t.Fatalf("key %d of step %d counts as step %d", key, step, got)
			}
		}
	}
	for step := 21; step <= 100; step++ {
		key := uint64(r.IntN(100))
		first := note(s, key, step%2 == 0, 0)
		last := s.note(id, pushPart{timestamp, key + 1, step%2 != 0}, 0)
		if last != step || step%2 != 0 && first != step {
			t.Fatalf("a push to two servers, number %d, counts as step %d, then %d", step, first, last)
		}
	}
	next := &steps{layers: map[layerID]*stepped{}} // of the next proxy, from the middle of a step on
	for step := 100; step <= 120; step++ {
		for key := range uint64(30) {
			if got := note(next, (key+15)%30, true, 100); got != step {
				t.Fatalf("after a restart key %d of step %d counts as step %d", key, step, got)
			}
		}
	}
	for i := range 4 * mostAlone {
		note(next, uint64(i+100), true, 0)
	}
	if n := len(next.layers[id].alone); n > mostAlone {
		t.Errorf("%d keys are remembered", n)
	}
}

// In a job that pushes each key by itself, as MXNet's workers do, a threshold ends
// with the step that was named, and not with so many pushes: nothing of it waits then,
// and most did before.
func TestEndsWithTheStep(t *testing.T) {
	const keys, width, until = 12, 40, 40
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.95, Until: until})
	w := e.dialServer(t, netip.MustParseAddrPort("198.18.0.2:9000"), nil)
	defer w.close()
	r := rand.New(rand.NewPCG(8, 8))
	pushed, got := sums{}, sums{}
	timestamp, sent := int32(0), make([]int, until+3)
	for step := range sent {
		for key := range uint64(keys) {
			timestamp++
			q := request{timestamp: timestamp, push: true, keys: []uint64{key}}
			for range width {
				q.vals = append(q.vals, float32(int(r.NormFloat64()*64)))
			}
			out := floats(w.carry(t, q.frames())[2])
			pushed.add(q.keys, q.vals, nil)
			got.add(q.keys, out, nil)
			for _, v := range out {
				if v != 0 {
					sent[step]++
				}
			}
		}
		if left := pushed.difference(got); (step < until) == (left == 0) && step > 2 {
			t.Errorf("after step %d of %d %v waits", step+1, until, left)
		}
	}
	middle := 0
	for _, n := range sent[10 : until/2] {
		middle += n
	}
	if share := float64(middle) / (keys * width * float64(until/2-10)); share > 0.15 {
		t.Errorf("of steps in the middle %.2f went at once", share)
	}
}
