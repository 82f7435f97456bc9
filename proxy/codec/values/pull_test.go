package values

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// answers are pulls' answers: a long key and keys of four values, of which few
// values change from answer to answer.
type answers struct {
	r    *rand.Rand
	vals []float32
}

func newAnswers(seed uint64) *answers {
	a := &answers{r: rand.New(rand.NewPCG(seed, 1)), vals: make([]float32, 2000+400)}
	for i := range a.vals {
		a.vals[i] = float32(a.r.NormFloat64())
	}
	return a
}

func (a *answers) next(step int) request {
	for range 30 {
		a.vals[a.r.IntN(len(a.vals))] += float32(a.r.NormFloat64())
	}
	q := request{timestamp: int32(step), pull: true, answer: true, vals: a.vals, keys: []uint64{5}, lens: []int32{2000}}
	for i := range 100 {
		q.keys, q.lens = append(q.keys, 100+uint64(i)), append(q.lens, 4)
	}
	return q
}

// Unchanged values are left out, and the worker gets every bit, over one link
// and the next, with lens and without, also where the rule comes and goes.
func TestUnchangedIsLossless(t *testing.T) {
	e := newEnds(t, Rule{Unchanged: true})
	a := newAnswers(1)
	encoded, plain := 0, 0
	w := e.dial(t, e.server, e.worker, "ps8")
	for step := range 60 {
		switch step {
		case 20:
			encoded, plain = encoded+w.encoded, plain+w.plain
			w.close()
			w = e.dial(t, e.server, e.worker, "ps8")
		case 30, 35:
			var rules []Rule
			if step == 35 {
				rules = []Rule{{Unchanged: true}}
			}
			require.NoError(t, e.server.SetRules(rules))
		}
		q := a.next(step)
		if step%4 == 3 {
			q = request{timestamp: int32(step), pull: true, answer: true, keys: q.keys[1:], vals: q.vals[2000:]}
		}
		want := q.frames()
		for i, f := range w.carry(t, want) {
			if !bytes.Equal(f, want[i]) {
				t.Fatalf("step %d: frame %d came differently", step, i)
			}
		}
	}
	encoded, plain = encoded+w.encoded, plain+w.plain
	if plain < 3*encoded {
		t.Errorf("%d bytes went as %d", plain, encoded)
	}
	w.close()
}

// With slim a worker has of each value one that the server had, and of the
// largest the last; what a push does not send arrives as zero.
func TestSlimPullsHaveValuesOfTheServer(t *testing.T) {
	for _, bits := range []int{0, 8} {
		rule := Rule{Unpulled: true, Slim: &Slim{Alpha: 0.3, Epsilon: 0.1, Rounds: 4}, Quantize: bits}
		e := newEnds(t, rule)
		a := newAnswers(2)
		down, up := e.dial(t, e.server, e.worker, "ps8"), e.dial(t, e.worker, e.server, "ps9")
		var history [][]float32
		for step := range 40 {
			if step == 25 {
				rule.Slim = &Slim{Alpha: 0.5, Epsilon: 0.1, Rounds: 2}
				for _, c := range []*Codec{e.server, e.worker} {
					require.NoError(t, c.SetRules([]Rule{rule}))
				}
			}
			q := a.next(step)
			history = append(history, append([]float32(nil), q.vals...))
			got := floats(down.carry(t, q.frames())[2])
			current := 0
			for i, v := range got {
				if v == q.vals[i] {
					current++
				}
				found := false
				for _, h := range history {
					found = found || h[i] == v
				}
				if !found {
					t.Fatalf("step %d: value %d is %v, which it never was", step, i, v)
				}
			}
			if current < len(got)/3 {
				t.Errorf("step %d: %d of %d values are current", step, current, len(got))
			}
			q.answer, q.pull, q.push = false, false, true
			sent := 0
			for i, v := range floats(up.carry(t, q.frames())[2]) {
				if v != 0 {
					sent++
				}
				if bits == 0 && v != 0 && v != q.vals[i] {
					t.Fatalf("step %d: value %d was pushed as %v and came as %v", step, i, q.vals[i], v)
				}
			}
			// The keys of few values are a layer from their second time on.
			if most := len(got) * 55 / 100; step > 1 && (sent > most || sent < len(got)/5) {
				t.Errorf("step %d: %d of %d values came", step, sent, len(got))
			}
		}
		if up.plain < up.encoded*2 || down.plain < 2*down.encoded {
			t.Errorf("%d bits: pushes of %d bytes went as %d, answers of %d as %d", bits, up.plain, up.encoded, down.plain, down.encoded)
		}
		if n := e.worker.Counts().Reasons; len(n) > 0 {
			t.Errorf("%v", n)
		}
		up.close()
		down.close()
	}
}

// By changes a pull brings up to date what differs most from what the worker
// has, and once nothing changes any more all of it.
func TestSlimByChanges(t *testing.T) {
	const n, core = 2000, 400
	e := newEnds(t, Rule{Unpulled: true, Slim: &Slim{Alpha: 0.3, Epsilon: 0.1, Rounds: 4, Changes: true}})
	down := e.dial(t, e.server, e.worker, "ps8")
	defer down.close()
	rng := rand.New(rand.NewPCG(4, 4))
	vals, has := make([]float32, n), make([]float32, n)
	for i := range vals { // the large ones are not those that change
		vals[i] = float32(1000 * (i % 7))
	}
	for step := range 30 {
		if step < 20 {
			for i := range vals {
				vals[i] += float32(rng.NormFloat64())
			}
		}
		got := floats(down.carry(t, (request{timestamp: int32(step), pull: true, answer: true, keys: []uint64{5}, lens: []int32{n}, vals: vals}).frames())[2])
		var missing, differences []float64
		for i, v := range got {
			d := math.Abs(float64(vals[i] - has[i]))
			differences = append(differences, d)
			if v != vals[i] {
				missing = append(missing, d)
			}
		}
		slices.Sort(differences)
		if least := differences[n-core]; step > 0 && len(missing) > 0 && slices.Max(missing) > least {
			t.Fatalf("step %d: a value came that differs by %v, one that differs by %v did not", step, least, slices.Max(missing))
		}
		if want := int(0.75 * n); step > 0 && step < 20 && (len(missing) < want*4/5 || len(missing) > want) {
			t.Errorf("step %d: %d of %d values are not current", step, len(missing), n)
		}
		copy(has, got)
	}
	if !slices.Equal(has, vals) {
		t.Error("ten pulls after the last change the worker has old values")
	}
}

// Quantized values come as what they were, on average, alone and after a
// threshold.
func TestQuantizedPullsAreRightOnAverage(t *testing.T) {
	for _, rule := range []Rule{{Quantize: 4, Unpulled: true}, {Quantize: 8, Unpulled: true, Threshold: 0.9}} {
		e := newEnds(t, rule)
		w := e.dial(t, e.worker, e.server, "ps9")
		r := rand.New(rand.NewPCG(5, 5))
		q := request{push: true, keys: []uint64{1, 2}, vals: make([]float32, 4000)}
		var sum, want float64
		for step := range 50 {
			q.timestamp = int32(step)
			for i := range q.vals {
				q.vals[i] = float32(1 + r.Float64())
				want += float64(q.vals[i])
			}
			for _, v := range floats(w.carry(t, q.frames())[2]) {
				sum += float64(v)
			}
		}
		least := 7
		if rule.Threshold > 0 {
			least = 10
			want *= 0.8 // some of it waits
		}
		if off := sum/want - 1; off < -0.25 || off > 0.25 || w.plain < least*w.encoded {
			t.Errorf("%+v: sums differ by %.2f, %d bytes went as %d", rule, off, w.plain, w.encoded)
		}
		w.close()
	}
}

// Two apps have values of their own under the same keys: what slim leaves out of one's
// answer is what that app's worker has, not the other's.
func TestSlimTellsAppsApart(t *testing.T) {
	e := newEnds(t, Rule{Slim: &Slim{Alpha: 0.3, Epsilon: 0.1}})
	w := e.dial(t, e.server, e.worker, "ps8")
	for step := range int32(6) {
		for app := range int32(2) {
			q := request{timestamp: step, app: app, pull: true, answer: true, keys: []uint64{5}, vals: make([]float32, 1000)}
			for i := range q.vals {
				q.vals[i] = float32(1 + app)
			}
			for i, v := range floats(w.carry(t, q.frames())[2]) {
				if v != float32(1+app) {
					t.Fatalf("step %d: number %d of app %d is %v", step, i, app, v)
				}
			}
		}
	}
}
