package values

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/test/require"
)

// Of a large layer some numbers are looked at.
func TestSquaresOfASample(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	numbers, want := normal(r, 1_000_000), 0.0
	for _, x := range numbers {
		want += float64(x) * float64(x)
	}
	if got := squares(element.Float32, pslite.AppendFloat32(nil, numbers)); math.Abs(got/want-1) > 0.05 {
		t.Errorf("%v, want some %v", got, want)
	}
}

// How much of a gradient is held back is what was pushed and has not arrived, as of the last step
// that was measured; once no rule holds anything back, as of now.
func TestDelay(t *testing.T) {
	const job, last = "198.18.0.1:8000", 63
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	r := rand.New(rand.NewPCG(1, 2))
	missing, want := map[int]float32{}, Delay{}
	for step := range last + 2 {
		q := whole(r, step)
		got := floats(w.carry(t, q.frames())[2])
		squares := 0.0
		for i, x := range q.vals {
			missing[i] += x - got[i]
			squares += float64(x) * float64(x)
		}
		if step == 1 {
			want.Step = squares
		} else if step&(step+1) == 0 && step > 1 { // 4, 8, 16 and so on steps
			want.Step += (squares - want.Step) / stepsMean
		}
		if step != last {
			continue
		}
		for _, x := range missing {
			if x != 0 {
				want.Values++
				want.Squares += float64(x) * float64(x)
			}
		}
	}
	if got := e.worker.DelayOf(job, false); got != want || want.Values == 0 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := e.worker.DelayOf("198.18.0.9:8000", true); got != (Delay{}) {
		t.Errorf("of another job: %+v", got)
	}
	w.carry(t, whole(r, last+2).frames()) // what was measured is out of date
	now := 0
	for _, st := range e.worker.streamsOf("", "") {
		now, _ = st.residual()
	}
	if got := e.worker.DelayOf(job, true); got.Values != now || now == want.Values {
		t.Errorf("now %+v, want %d values", got, now)
	}
	require.NoError(t, e.worker.SetRules(nil))
	w.carry(t, whole(r, last+3).frames())
	if got := e.worker.DelayOf(job, true); got.Values != 0 || got.Squares != 0 {
		t.Errorf("after the rule: %+v", got)
	}
}

// With auto what is held back stays at a share of the steps so far, and less is sent as they go on;
// what arrives and what waits add up to what was pushed.
func TestAuto(t *testing.T) {
	const job, steps = "198.18.0.1:8000", 641
	e := newEnds(t, Rule{Unpulled: true, Threshold: AutoThreshold, Auto: true})
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	r := rand.New(rand.NewPCG(1, 2))
	sent, missing := make([]int, steps), map[int]float64{}
	for step := range steps {
		q := whole(r, step)
		for i, x := range floats(w.carry(t, q.frames())[2]) {
			missing[i] += float64(q.vals[i]) - float64(x)
			if x != 0 {
				sent[step]++
			}
		}
	}
	d := e.worker.DelayOf(job, false)
	if held := math.Sqrt(d.Squares / d.Step); held > 1.5*0.01*steps {
		t.Errorf("%.1f steps' gradient is held back after %d", held, steps)
	}
	squares := 0.0
	for _, x := range missing {
		squares += x * x
	}
	now := e.worker.DelayOf(job, true)
	if math.Abs(now.Squares/squares-1) > 1e-3 {
		t.Errorf("squares of %v wait, %v are missing", now.Squares, squares)
	}
	if first, last := sent[0], sent[steps-1]; last == 0 || last > first/4 {
		t.Errorf("%d values were sent in the first step, %d in the last", first, last)
	}
}
