package client

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A job is drained when every proxy that carries it has reported so since its rule is to drain.
func TestHeld(t *testing.T) {
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
	for name, c := range map[string]struct {
		followers []*api.CodecFollower
		hosts     int
		left      []string
	}{
		"nobody follows": {nil, 0, nil},
		"drained":        {[]*api.CodecFollower{host("a", true, threshold(measure.Draining, 0)), host("b", true, threshold(measure.Draining, 0))}, 2, nil},
		"one holds back": {[]*api.CodecFollower{host("a", true, threshold(measure.Draining, 0)), host("b", true, threshold(measure.Draining, 9))}, 2,
			[]string{"b holds back 9 values (1.50 steps' gradient)"}},
		"one has not reported": {[]*api.CodecFollower{host("a", true, threshold("", 0))}, 1, []string{"a has not reported"}},
		"others":               {[]*api.CodecFollower{host("a", false, threshold("", 9)), host("b", true, nil)}, 0, nil},
	} {
		hosts, left := held(&api.CodecsDescription{Followers: c.followers})
		if hosts != c.hosts || !slices.Equal(left, c.left) {
			t.Errorf("%s: %d, %q; want %d, %q", name, hosts, left, c.hosts, c.left)
		}
	}
}
