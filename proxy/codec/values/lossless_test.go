package values

import (
	"math/rand/v2"
	"testing"
)

// Messages that rules leave as they are, or would only round, and most of whose values
// are zero, go without loss in as few bytes as where there is no rule: the first push of
// keys, answers of which nothing is remembered yet, values on a wire of 16 bits.
func TestSparseValuesBesideRules(t *testing.T) {
	const size = 20_000
	rng := rand.New(rand.NewPCG(1, 1))
	vals := make([]float32, size)
	for range size / 50 {
		vals[rng.IntN(size)] = float32(rng.NormFloat64())
	}
	for _, c := range []struct {
		name   string
		rule   Rule
		answer bool
		lens   []int32
	}{
		{"threshold", Rule{Threshold: 0.99}, false, nil},
		{"threshold, lengths", Rule{Threshold: 0.99}, false, []int32{size - 100, 99, 1}},
		{"slim", Rule{Slim: &Slim{Alpha: 0.3, Epsilon: 0.15}}, false, nil},
		{"wire, push", Rule{Wire: "bf16"}, false, nil},
		{"wire, answer with lengths", Rule{Wire: "fp16"}, true, []int32{1, size - 2, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, c.rule)
			w := e.dial(t, e.worker, e.server, "ps9")
			if c.answer {
				w = e.dial(t, e.server, e.worker, "ps8")
			}
			defer w.close()
			for step := range 3 {
				w.plain, w.encoded = 0, 0
				q := request{timestamp: int32(step), push: !c.answer, pull: c.answer, answer: c.answer, vals: vals, lens: c.lens}
				for i := range max(1, len(c.lens)) {
					q.keys = append(q.keys, uint64(10*step+i)) // no key comes twice
				}
				frames := w.carry(t, q.frames())
				if got := floats(frames[2]); !sameBits(got, vals) {
					t.Fatal("values came as others")
				}
				if len(frames) != len(q.frames()) || string(frames[len(frames)-1]) != string(q.frames()[len(frames)-1]) {
					t.Fatal("lengths came as others")
				}
				if times := float64(w.plain) / float64(w.encoded); times < 20 {
					t.Errorf("%.1f times fewer bytes", times)
				}
			}
		})
	}
}

// A message whose values turn out not to be worth packing is as if that had not been
// tried, also where the attempt has outgrown the memory of the head.
func TestValuesThatAreNotPackedLeaveTheLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	vals := make([]float32, 3000)
	for i := range vals {
		if rng.IntN(3) > 0 { // one in three is zero
			vals[i] = float32(rng.NormFloat64())
		}
	}
	lens := make([]int32, 1000)
	keys := make([]uint64, len(lens))
	for i := range lens {
		keys[i], lens[i] = uint64(7*i), int32(1+i%5)
	}
	for _, c := range []struct {
		name string
		rule Rule
	}{{"threshold", Rule{Threshold: 0.99}}, {"wire", Rule{Wire: "bf16"}}} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnds(t, c.rule)
			w := e.dial(t, e.worker, e.server, "ps9")
			defer w.close()
			for step := range 40 {
				for i := range keys { // other keys each time: they are not pulled yet
					keys[i] = uint64(7*i + 10_000*step)
					lens[i] = int32(1 + rng.IntN(5))
				}
				n := 0
				for _, l := range lens {
					n += int(l)
				}
				vals = append(vals, vals...)[:n]
				q := request{timestamp: int32(step), push: true, keys: keys, vals: vals, lens: lens}
				frames := w.carry(t, q.frames())
				if got := frames[3]; string(got) != string(q.frames()[3]) {
					t.Fatalf("step %d: lengths came as others", step)
				}
			}
		})
	}
}
