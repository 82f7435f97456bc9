package values

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// rounded is what a value becomes on a wire of 16 bits.
func rounded(wire string, v float32) float32 {
	if wire == "fp16" {
		return element.FromFloat16(element.ToFloat16(v))
	}
	return element.FromBFloat16(element.ToBFloat16(v))
}

// With a wire of 16 bits each value of pushes and pulls comes as the nearest number
// of 16 bits, in half the bytes, of long keys and short ones; nothing is remembered.
func TestWireOf16BitsRoundsToNearest(t *testing.T) {
	for _, wire := range []string{"bf16", "fp16"} {
		e := newEnds(t, Rule{Wire: wire, Unpulled: true})
		up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
		rng := rand.New(rand.NewPCG(1, 1))
		for step := range 4 {
			for _, w := range []*way{up, down} {
				q := request{timestamp: int32(step), push: w == up, pull: w == down, answer: w == down, keys: []uint64{1, 2, 3, 4}, lens: []int32{3001, 2, 1, 70_000}, vals: make([]float32, 73_004)}
				for i := range q.vals {
					q.vals[i] = float32(rng.NormFloat64() * math.Exp(rng.NormFloat64()))
				}
				if step > 0 {
					q.vals[7] = float32(math.Copysign(0, -1))
				}
				if wire == "bf16" {
					q.vals[8] = float32(math.Inf(-1))
				}
				for i, v := range floats(w.carry(t, q.frames())[2]) {
					if math.Float32bits(v) != math.Float32bits(rounded(wire, q.vals[i])) {
						t.Fatalf("%s: %g came as %g, want %g", wire, q.vals[i], v, rounded(wire, q.vals[i]))
					}
				}
			}
		}
		for _, w := range []*way{up, down} {
			if times := float64(w.plain) / float64(w.encoded); times < 1.95 {
				t.Errorf("%s: %.2f times fewer bytes", wire, times)
			}
			w.close()
		}
		if n := e.server.Counts().Reasons; len(n) > 0 || e.server.Counts().StateBytes > 0 || e.server.Counts().Forms[0].Form != "wire" {
			t.Errorf("%+v", e.server.Counts())
		}
	}
}

// What numbers of 16 bits do not reach goes as it is, counted; NaNs stay NaNs.
func TestWireBeyondItsRange(t *testing.T) {
	for _, bad := range []float32{65505, -1e30, float32(math.Inf(1)), float32(math.NaN())} {
		for _, wire := range []string{"bf16", "fp16"} {
			e := newEnds(t, Rule{Wire: wire})
			w := e.dial(t, e.server, e.worker, "ps8")
			q := request{pull: true, answer: true, keys: []uint64{1}, vals: []float32{0.1, bad, 0.3}}
			got := floats(w.carry(t, q.frames())[2])
			want := slices.Clone(q.vals)
			reasons := map[Reason]uint64{ReasonNotRounded: 1}
			if wire == "bf16" {
				reasons = map[Reason]uint64{}
				for i, v := range want {
					want[i] = rounded(wire, v)
				}
			}
			if n := e.server.Counts().Reasons; n[ReasonNotRounded] != reasons[ReasonNotRounded] {
				t.Errorf("%s, %g: counted %v", wire, bad, n)
			}
			if bad == bad && !sameBits(got, want) || bad != bad && got[1] == got[1] {
				t.Errorf("%s: %v came as %v, want %v", wire, q.vals, got, want)
			}
			w.close()
		}
	}
}

// The wire goes together with a threshold, whose values that go are rounded, and
// with what leaves out unchanged values, which compares rounded ones.
func TestWireCombines(t *testing.T) {
	e := newEnds(t, Rule{Threshold: 0.9, Unpulled: true, Unchanged: true, Wire: "bf16"})
	up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
	defer up.close()
	defer down.close()
	rng := rand.New(rand.NewPCG(1, 1))
	a := newAnswers(1)
	var sums, came [10_000]float64
	for step := range 40 {
		q := request{timestamp: int32(step), push: true, keys: []uint64{1}, vals: make([]float32, len(sums))}
		for i := range q.vals {
			q.vals[i] = float32(rng.NormFloat64())
			sums[i] += float64(q.vals[i])
		}
		zeros := 0
		for i, v := range floats(up.carry(t, q.frames())[2]) {
			if came[i] += float64(v); v == 0 {
				zeros++
			}
			if v != rounded("bf16", v) {
				t.Fatalf("value %g has more than 16 bits", v)
			}
		}
		if zeros < 8_000 {
			t.Fatalf("step %d: %d values wait", step, zeros)
		}
		answer := a.next(step)
		for i, v := range floats(down.carry(t, answer.frames())[2]) {
			if v != rounded("bf16", answer.vals[i]) {
				t.Fatalf("step %d: value %d is %g, came as %g", step, i, answer.vals[i], v)
			}
		}
	}
	off := 0.0
	for i := range sums {
		off += math.Abs(sums[i] - came[i])
	}
	if off/float64(len(sums)) > 3 { // what waits: some three pushes' worth of each value
		t.Errorf("sums are off by %g in the mean", off/float64(len(sums)))
	}
	if times := float64(up.plain) / float64(up.encoded); times < 15 {
		t.Errorf("pushes took %.1f times fewer bytes", times)
	}
	if times := float64(down.plain) / float64(down.encoded); times < 5 {
		t.Errorf("answers took %.1f times fewer bytes", times)
	}
}

// Numbers of other kinds than float32 are as they were.
func TestWireOfOtherKinds(t *testing.T) {
	e := newEnds(t, Rule{Wire: "bf16"})
	w := e.dial(t, e.server, e.worker, "ps8")
	defer w.close()
	raw := make([]byte, 8*100)
	for i := range 100 {
		element.Float64.Put(raw, i, 1/float64(i+3))
	}
	q := request{pull: true, answer: true, keys: []uint64{1}, kind: pslite.Double, raw: raw}
	if got := w.carry(t, q.frames())[2]; !slices.Equal(got, raw) {
		t.Error("float64 numbers were changed")
	}
}
