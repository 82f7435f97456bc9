package client

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A job is drained when every proxy that carries it, or has since the wait began, reports so since
// its rule is to drain.
func TestDrainWait(t *testing.T) {
	line := func(name, reason string, held uint64) *api.Measure {
		m := &api.Measure{Job: "a:1", Measure: name, HeldValues: held, HeldSquares: float64(held), StepSquares: 4}
		if reason != "" {
			m.Not = []*api.MeasureGap{{Reason: reason}}
		}
		return m
	}
	threshold := func(reason string, held uint64) []*api.Measure {
		return []*api.Measure{line(measure.Carry, "", 0), line(measure.Threshold, reason, held)}
	}
	host := func(name string, following bool, lines []*api.Measure) *api.CodecFollower {
		return &api.CodecFollower{Host: name, Following: following, Measures: lines}
	}
	unnamed := threshold("", 5)
	unnamed[1].Job = ""
	drained := host("a", true, threshold(measure.Draining, 0))
	for name, c := range map[string]struct {
		first, then []*api.CodecFollower
		hosts       int
		left        []string // in the end
	}{
		"nobody follows": {},
		"drained":        {nil, []*api.CodecFollower{drained, host("b", true, threshold(measure.Draining, 0))}, 2, nil},
		"one holds back": {nil, []*api.CodecFollower{drained, host("b", true, threshold(measure.Draining, 9))}, 2,
			[]string{"b holds back 9 values (1.50 steps' gradient)"}},
		"one has not reported": {nil, []*api.CodecFollower{host("a", true, threshold("", 0))}, 1, []string{"a has not reported"}},
		"others":               {nil, []*api.CodecFollower{host("a", false, threshold("", 9)), host("b", true, nil)}, 0, nil},
		"one is replaced": {[]*api.CodecFollower{drained, host("b", true, threshold(measure.Draining, 9))}, []*api.CodecFollower{drained, host("b", false, threshold(measure.Draining, 9))}, 2,
			[]string{"b does not report the job any more"}},
		"of an unknown job": {nil, []*api.CodecFollower{drained, host("b", true, unnamed)}, 1, []string{"b holds back 5 values of a job of which it does not know the name"}},
	} {
		var w drainWait
		w.look(&api.CodecsDescription{Followers: c.first})
		left := w.look(&api.CodecsDescription{Followers: c.then})
		if len(w.carry) != c.hosts || !slices.Equal(left, c.left) {
			t.Errorf("%s: %d, %q; want %d, %q", name, len(w.carry), left, c.hosts, c.left)
		}
	}
}
