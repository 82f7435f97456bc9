package values

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// lossyRules are a rule for each codec that changes pushes.
func lossyRules() map[string]Rule {
	return map[string]Rule{
		"threshold": {Threshold: 0.9}, "slim": {Slim: &Slim{Alpha: 0.3, Epsilon: 0.1}}, "quantize": {Quantize: 4}, "wire": {Wire: "bf16"},
		"threshold and wire": {Threshold: 0.9, Wire: "bf16"},
	}
}

// carriesWhole carries a push and reports whether all of its values arrive.
func (w *way) carriesWhole(t *testing.T, q request) bool {
	t.Helper()
	return slices.Equal(floats(w.carry(t, q.frames())[2]), q.vals)
}

// Keys of few values go whole until their worker has pulled them, by whatever list, and are
// coded from then on, by whatever list they are pushed.
func TestShortKeysAreCodedOncePulled(t *testing.T) {
	for name, rule := range lossyRules() {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, rule)
			w := e.dial(t, e.worker, e.server, "ps9")
			r := rand.New(rand.NewPCG(3, 3))
			stamp := int32(0)
			push := func(keys []uint64) (whole bool) {
				stamp++
				return w.carriesWhole(t, request{timestamp: stamp, push: true, keys: keys, vals: normal(r, 10*len(keys))})
			}
			pull := func(keys []uint64) {
				stamp++
				w.carry(t, request{timestamp: stamp, pull: true, keys: keys}.frames())
			}
			// The list of slim's layers has to come twice.
			coded := func(keys []uint64) bool {
				first := push(keys)
				return !push(keys) || !first
			}
			list := randomKeys(r, 100, 1000)
			pull(list)
			if !push(list) {
				t.Error("the link's first push did not go whole")
			}
			if !coded(list) {
				t.Error("the list that was pulled goes whole")
			}
			if !coded(list[20:40]) {
				t.Error("a part of the list that was pulled goes whole")
			}
			other := []uint64{5000, 5001, 5002, 5003}
			if coded(other) {
				t.Error("keys that were not pulled are coded")
			}
			stamp++
			some := request{timestamp: stamp, push: true, keys: append(slices.Clone(list), other...), vals: normal(r, 10*(len(list)+len(other)))}
			if got := floats(w.carry(t, some.frames())[2]); !slices.Equal(got[10*len(list):], some.vals[10*len(list):]) {
				t.Error("keys that were not pulled are changed among others")
			}
			for i := range uint64(20) { // more lists than are remembered
				pull([]uint64{5000 + i, 6000 + i})
			}
			if !coded(other) {
				t.Error("keys that were pulled one by one go whole")
			}
			w.close()
			w = e.dial(t, e.worker, e.server, "ps9")
			if coded(list) {
				t.Error("on a new link nothing was pulled, and it is coded")
			}
			for _, st := range e.worker.streamsOf("", "") {
				st.mu.Lock()
				st.restart(ReasonRestarted)
				st.mu.Unlock()
			}
			w.close()
			if used := e.worker.budget.used.Load(); used != 0 {
				t.Errorf("%d bytes are counted of nothing", used)
			}
		})
	}
}

// PS_RESEND repeats initial values that were lost, maybe after their keys were pulled.
func TestRepeatedInitialValues(t *testing.T) {
	for name, rule := range lossyRules() {
		for _, width := range []int{2, 1000} {
			t.Run(fmt.Sprint(name, " ", width), func(t *testing.T) {
				e := newEnds(t, rule)
				w := e.dial(t, e.worker, e.server, "ps9")
				defer w.close()
				r := rand.New(rand.NewPCG(4, 4))
				q := request{timestamp: 1, push: true, keys: []uint64{1, 2, 3}, vals: normal(r, 3*width)}
				w.carry(t, q.frames())
				w.carry(t, request{timestamp: 2, pull: true, keys: q.keys}.frames())
				gradient := request{timestamp: 3, push: true, keys: q.keys, vals: normal(r, 3*width)}
				w.carry(t, gradient.frames())
				if !w.carriesWhole(t, q) {
					t.Error("the repetition did not go whole")
				}
			})
		}
	}
}

// A push that names a key twice, or keys out of order, goes whole: state of a key serves
// one list of its values at a time.
func TestKeysThatComeTwice(t *testing.T) {
	for name, rule := range lossyRules() {
		rule.Unpulled = true
		for shape, q := range map[string]request{
			"one value each":   {keys: []uint64{1, 2, 2, 3}, vals: []float32{1.1, 2.2, 3.3, 4.4}},
			"apart":            {keys: []uint64{2, 3, 2}, vals: []float32{1.1, 2.2, 3.3}},
			"long":             {keys: []uint64{7, 7}, vals: normal(rand.New(rand.NewPCG(5, 5)), 2000)},
			"lengths":          {keys: []uint64{1, 1, 2}, lens: []int32{2, 2, 1}, vals: []float32{1.1, 2.2, 3.3, 4.4, 5.5}},
			"lengths differ":   {keys: []uint64{1, 1, 2}, lens: []int32{1, 2, 1}, vals: []float32{1.1, 2.2, 3.3, 4.4}},
			"long and short":   {keys: []uint64{7, 7}, lens: []int32{1000, 2}, vals: normal(rand.New(rand.NewPCG(6, 6)), 1002)},
			"the highest keys": {keys: []uint64{1<<64 - 1, 1<<64 - 1}, vals: []float32{1.1, 2.2}},
		} {
			e := newEnds(t, rule)
			w := e.dial(t, e.worker, e.server, "ps9")
			q.push = true
			for range 3 {
				q.timestamp++
				if !w.carriesWhole(t, q) {
					t.Errorf("%s, %s: not all values arrived", name, shape)
				}
			}
			if n := e.worker.Counts(); n.Reasons[ReasonShape] != 3 {
				t.Errorf("%s, %s: counted %v, want 3 %q", name, shape, n.Reasons, ReasonShape)
			}
			if waits := e.worker.StillWaiting(); waits != 0 {
				t.Errorf("%s, %s: %d values wait", name, shape, waits)
			}
			w.close()
		}
	}
}

// assigning are routes to servers that assign.
type assigning struct{ wholes }

func (assigning) Assigns() bool { return true }

// Where servers are known to assign, by flag or by a test with a scratch key, nothing is
// left out of a push, whichever rule asks.
func TestNothingIsLeftOutForServersThatAssign(t *testing.T) {
	for name, rule := range map[string]Rule{"threshold": {Threshold: 0.9, Unpulled: true}, "slim": {Slim: &Slim{Alpha: 0.3, Epsilon: 0.1}, Unpulled: true}} {
		for _, probed := range []bool{false, true} {
			e := newEnds(t)
			l := e.link()
			if probed {
				l.Routes = assigning{}
			} else {
				e.worker.assigns = true
			}
			require.NoError(t, e.worker.SetPlanned([]Rule{rule}))
			w := e.open(t, l, e.worker, e.server, "ps9")
			r := rand.New(rand.NewPCG(7, 7))
			for step := range int32(4) {
				if !w.carriesWhole(t, request{timestamp: step, push: true, keys: []uint64{1, 2}, lens: []int32{1000, 5}, vals: normal(r, 1005)}) {
					t.Errorf("%s, probed %v: step %d: values were left out", name, probed, step)
				}
			}
			if n := e.worker.Counts().Reasons; n[ReasonAssigned] != 8 {
				t.Errorf("%s, probed %v: counted %v, want 8 %q", name, probed, n, ReasonAssigned)
			}
			if why, unfit := e.worker.Unfit(l.Job); rule.Threshold > 0 && (!unfit || why != ReasonAssigned) {
				t.Errorf("%s: unfit %v, %q", name, unfit, why)
			}
			w.close()
		}
	}
}
