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

// Parts may be late, and proxies begin anew: a push is counted once all the same.
func TestPushesAreCountedOnce(t *testing.T) {
	s := &steps{layers: map[layerID]*stepped{}}
	id := layerID{Range: Range{Last: 9}}
	for i, c := range []struct {
		timestamp    int32
		before, want int
	}{{5, 0, 1}, {5, 1, 1}, {7, 1, 2}, {5, 2, 2}, {8, 40, 41}, {7, 12, 41}, {8, 0, 41}, {9, 0, 42}} {
		if got := s.note(id, c.timestamp, c.before); got != c.want {
			t.Errorf("push %d, timestamp %d: it is number %d, want %d", i, c.timestamp, got, c.want)
		}
	}
	for i := range int32(3 * lastSteps) {
		if got := s.note(id, 100+i, 0); got != 43+int(i) {
			t.Fatalf("push %d is number %d", i, got)
		}
	}
	if n := len(s.layers[id].last); n != lastSteps {
		t.Errorf("%d timestamps are remembered, want %d", n, lastSteps)
	}
}
