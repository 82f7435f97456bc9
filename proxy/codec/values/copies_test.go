package values

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// sameCopies compares what the two ends of a link remember.
func sameCopies(t interface{ Fatalf(string, ...any) }, w *way) {
	s, r := &w.sender.(*Sender).copies, &w.receiver.(*Receiver).copied
	if len(r.tables) > len(s.tables) {
		t.Fatalf("the receiver has %d tables, the sender %d", len(r.tables), len(s.tables))
	}
	for i, there := range r.tables {
		here := s.tables[i]
		for key, d := range here.dense {
			if len(d.values) > 0 && !bytes.Equal(d.values, there.dense[key].values) {
				t.Fatalf("the copies of key %d differ", key)
			}
		}
		size := here.kind.Size()
		for _, cell := range here.narrow.index.cells {
			if cell.place == 0 || !cell.pulled() {
				continue
			}
			from, width := there.narrow.index.find(cell.key)
			at, other := (int(cell.place)-1)*size, int(from)*size
			if width != cell.size() || !bytes.Equal(here.narrow.values[at:at+width*size], there.narrow.values[other:other+width*size]) {
				t.Fatalf("the copies of key %d differ", cell.key)
			}
		}
	}
	if s.left > r.left {
		t.Fatalf("the sender counts on %d bytes, the receiver has %d", s.left, r.left)
	}
}

// parameters are a server's: keys of many and of few values, all of which change.
type parameters struct {
	rng    *rand.Rand
	widths map[uint64]int
	vals   map[uint64][]float32
}

func newParameters(seed uint64) *parameters {
	p := &parameters{rand.New(rand.NewPCG(seed, 1)), map[uint64]int{}, map[uint64][]float32{}}
	for key := range uint64(60) {
		p.widths[key] = 1 + int(key)%3
		if key%20 == 7 {
			p.widths[key] = DenseValues + int(key)
		}
		for range p.widths[key] {
			p.vals[key] = append(p.vals[key], float32(p.rng.NormFloat64()))
		}
	}
	return p
}

// step changes all values a little.
func (p *parameters) step() {
	for key := range uint64(len(p.widths)) {
		for i := range p.vals[key] {
			p.vals[key][i] += float32(0.01 * p.rng.NormFloat64())
		}
	}
}

func (p *parameters) answer(timestamp int32, keys []uint64) request {
	q := request{timestamp: timestamp, pull: true, answer: true, keys: keys}
	for _, key := range keys {
		q.vals, q.lens = append(q.vals, p.vals[key]...), append(q.lens, int32(p.widths[key]))
	}
	return q
}

// Whatever is pulled over whatever links, while keys move, rules change, answers
// are repeated or lost with their link, and memory is short: both ends of a link
// have the same copies, a key's first answer on a link and after it has moved is
// exact, and a worker's values are no further from the server's than they were.
func TestEndsNeverDiffer(t *testing.T) {
	rules := [][]Rule{{{PullThreshold: 0.9}}, {{PullQuantize: 4, Wire: "bf16"}}, {{PullThreshold: 0.8, PullQuantize: 8, QuantizeBucket: 64}}, {{Keys: Range{0, 30}, PullThreshold: 0.5, Wire: "bf16"}, {Unchanged: true}}, nil}
	rapid.Check(t, func(rt *rapid.T) {
		e := newEnds(t, rules[0]...)
		short := rapid.SampledFrom([]int64{1 << 30, 40_000, 20_000, 2_000}).Draw(rt, "memory")
		e.server.budget.limit = short
		p := newParameters(rapid.Uint64().Draw(rt, "seed"))
		links := []*way{e.dial(t, e.server, e.worker, "ps8"), e.dial(t, e.server, e.worker, "ps8")}
		exact := []map[uint64]bool{{}, {}} // keys whose next answer must be
		fresh := func(i int) {
			exact[i] = map[uint64]bool{}
			for key := range p.widths {
				exact[i][key] = true
			}
		}
		fresh(0)
		fresh(1)
		for step := range rapid.IntRange(1, 30).Draw(rt, "steps") {
			p.step()
			i := rapid.IntRange(0, 1).Draw(rt, "link")
			var keys []uint64
			for key := range uint64(60) {
				if p.rng.IntN(3) > 0 {
					keys = append(keys, key)
				}
			}
			stamp := int32(step)
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0: // the link breaks, perhaps with an answer on its way
				if rapid.Bool().Draw(rt, "lost") {
					links[i].sender.Encode(nil, message(p.answer(stamp, keys).frames()))
				}
				links[i].close()
				links[i] = e.dial(t, e.server, e.worker, "ps8")
				fresh(i)
			case 1:
				require.NoError(t, e.server.SetRules(rapid.SampledFrom(rules).Draw(rt, "rules")))
				fresh(0)
				fresh(1)
			case 2: // keys move: a proxy pulls them, by one of the links
				moving := keys[:min(len(keys), 5)]
				q := p.answer(route.FirstExact+stamp, moving)
				if got := floats(links[i].carry(t, q.frames())[2]); !slices.Equal(got, q.vals) {
					rt.Fatalf("what a move pulls is not exact")
				}
				for _, key := range moving {
					exact[0][key], exact[1][key] = true, true
				}
				continue
			case 3: // another length, as of a variable that was made again
				key := keys[0]
				p.widths[key]++
				p.vals[key] = append(p.vals[key], 1)
				exact[0][key], exact[1][key] = true, true
			case 4:
				p.vals[keys[0]][0] = float32(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1)}).Draw(rt, "value"))
			}
			q := p.answer(stamp, keys)
			for range rapid.IntRange(1, 2).Draw(rt, "times") { // PS_RESEND may repeat it
				got := floats(links[i].carry(t, q.frames())[2])
				sameCopies(rt, links[i])
				at := 0
				for _, key := range keys {
					one, want := got[at:at+p.widths[key]], q.vals[at:at+p.widths[key]]
					at += len(one)
					if exact[i][key] && !sameBits(one, want) && e.server.Rules() != nil && e.server.Rules()[0].feedsBack() && e.server.Rules()[0].Wire == "" {
						rt.Fatalf("step %d: key %d came as %v, it is %v", step, key, one, want)
					}
					delete(exact[i], key)
				}
			}
			for key, vals := range p.vals { // what is not finite goes away again
				if v := vals[0]; v-v != 0 {
					p.vals[key][0] = 1
				}
			}
		}
		for _, w := range links {
			w.close()
		}
		if left := e.server.budget.used.Load(); left != 0 {
			rt.Fatalf("%d bytes stay taken after the links have ended", left)
		}
	})
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// A worker's values follow the server's, in a twentieth of the bytes.
func TestPullsFollow(t *testing.T) {
	for _, c := range []struct {
		rule  Rule
		times float64
		form  string
	}{
		{Rule{PullThreshold: 0.95}, 15, "pull-threshold"}, {Rule{PullThreshold: 0.95, Wire: "bf16"}, 28, "pull-threshold"},
		{Rule{PullThreshold: 0.95, PullQuantize: 4}, 40, "pull-threshold"}, {Rule{PullQuantize: 4}, 7, "pull-quantize"},
	} {
		e := newEnds(t, c.rule)
		w := e.dial(t, e.server, e.worker, "ps8")
		rng := rand.New(rand.NewPCG(1, 1))
		q := request{pull: true, answer: true, keys: []uint64{1, 2}, vals: make([]float32, 40_000)}
		var got []float32
		for step := range 80 {
			q.timestamp = int32(step)
			if step < 40 { // then the values stay
				for i := range q.vals {
					q.vals[i] += float32(rng.NormFloat64())
				}
			}
			if step == 1 {
				w.encoded, w.plain = 0, 0
			}
			got = floats(w.carry(t, q.frames())[2])
			if step == 0 && !slices.Equal(got, q.vals) {
				t.Fatalf("%+v: the first pull is not exact", c.rule)
			}
			if step == 39 {
				if times := float64(w.plain) / float64(w.encoded); times < c.times {
					t.Errorf("%+v: %.1f times fewer bytes, want %v", c.rule, times, c.times)
				}
			}
		}
		off := 0.0
		for i := range got {
			off = max(off, math.Abs(float64(got[i]-q.vals[i])))
		}
		if off > 0.3 { // of some 6 at the last change
			t.Errorf("%+v: forty pulls after the last change a value is off by %g", c.rule, off)
		}
		if f := e.server.Counts().Forms; len(f) != 1 || f[0].Form != c.form || f[0].Layers != 160 {
			t.Errorf("%+v", f)
		}
		w.close()
	}
}

// A key that has moved away and back is not told by what its first server
// remembers of it, by whomever it was pulled.
func TestMovedKeysStartAnew(t *testing.T) {
	e := newEnds(t, Rule{PullThreshold: 0.9})
	one, other := e.dial(t, e.server, e.worker, "ps8"), e.dial(t, e.server, e.worker, "ps8")
	defer one.close()
	defer other.close()
	for _, keys := range [][]uint64{{5}, {1, 2, 3, 4}} { // a dense one, and keys of few values
		q := request{pull: true, answer: true, keys: keys, vals: make([]float32, 3000)}
		if len(keys) > 1 {
			q.vals = q.vals[:8*len(keys)]
		}
		pull := func(w *way, timestamp int32) []float32 {
			for i := range q.vals {
				q.vals[i] += float32(1 + i%7)
			}
			q.timestamp = timestamp
			return floats(w.carry(t, q.frames())[2])
		}
		for step := range int32(5) {
			pull(one, step)
		}
		if got := pull(one, 5); slices.Equal(got, q.vals) {
			t.Error("nothing was left out before the move")
		}
		before := e.server.Counts().Reasons[ReasonMoved]
		pull(other, route.FirstExact+1)
		if got := pull(one, 6); !slices.Equal(got, q.vals) {
			t.Errorf("%d keys: after the move their values are those of before", len(keys))
		}
		if n := e.server.Counts().Reasons[ReasonMoved] - before; n != uint64(len(keys)) {
			t.Errorf("%d keys moved, %d were counted", len(keys), n)
		}
	}
}

// A message that names a key twice, with different numbers of values, arrives.
func TestKeyTwiceWithOtherWidths(t *testing.T) {
	for _, rule := range []Rule{{PullQuantize: 4}, {PullThreshold: 0.5}, {Unchanged: true}, {Threshold: 0.5, Unpulled: true}} {
		e := newEnds(t, rule)
		for _, lens := range [][]int32{{1, 3}, {3, 1}, {0, 2}} {
			for _, push := range []bool{false, true} {
				from, to := e.server, e.worker
				if push {
					from, to = to, from
				}
				w := e.dial(t, from, to, "ps9")
				for i := range int32(4) {
					q := request{timestamp: 4*i + 1, answer: !push, push: push, pull: !push, keys: []uint64{5, 5, 9}, lens: append(append([]int32{}, lens...), 2)}
					for k := range lens[0] + lens[1] + 2 {
						q.vals = append(q.vals, float32(k+i))
					}
					if out := w.carry(t, q.frames()); rule.Threshold == 0 && rule.PullThreshold == 0 && rule.PullQuantize == 0 && !slices.Equal(floats(out[2]), q.vals) {
						t.Fatalf("%v arrived as %v", q.vals, floats(out[2]))
					}
				}
				w.close()
			}
		}
	}
}
