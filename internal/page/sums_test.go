package page

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// Neighbours that are worth summing are one range; where there are too many, those count
// that save most: time where links' speeds are known.
func TestChosenRanges(t *testing.T) {
	of := func(first, last uint64, servers, hostSums float64, chosen Form) AlphaRange {
		r := AlphaRange{Block: NewBlock(first, last, last-first+1, false)}
		r.Forms = map[string]float64{FormServers.String(): servers, FormHostSums.String(): hostSums}
		r.Chosen = chosen.String()
		return r
	}
	timed := func(r AlphaRange, servers, hostSums float64) AlphaRange {
		r.Seconds = map[string]float64{FormServers.String(): servers, FormHostSums.String(): hostSums}
		return r
	}
	dense, denser := of(0, 9, 400, 100, FormHostSums), of(10, 19, 4000, 1000, FormHostSums)
	rare, some := of(20, 29, 100, 98, FormServers), of(50, 59, 100, 50, FormHostSums)
	for name, c := range map[string]struct {
		ranges []AlphaRange
		most   int
		want   []measure.KeyRange
		all    bool
	}{
		"none":                     {nil, 8, nil, false},
		"all":                      {[]AlphaRange{dense, denser, some}, 8, []measure.KeyRange{{First: 0, Last: 59}}, true},
		"without the rare":         {[]AlphaRange{dense, denser, rare, some}, 8, []measure.KeyRange{{First: 0, Last: 19}, {First: 50, Last: 59}}, false},
		"those that save most":     {[]AlphaRange{some, rare, dense}, 1, []measure.KeyRange{{First: 0, Last: 9}}, false},
		"those that save the time": {[]AlphaRange{timed(some, 9, 1), timed(rare, 1, 1), timed(dense, 2, 1)}, 1, []measure.KeyRange{{First: 50, Last: 59}}, false},
		"nothing worth it":         {[]AlphaRange{rare}, 8, nil, false},
		"an agent, of one host":    {[]AlphaRange{{}}, 8, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, all := (&Alpha{Ranges: c.ranges}).chosen(c.most)
			if !slices.Equal(got, c.want) || all != c.all {
				t.Errorf("%v, %v; want %v, %v", got, all, c.want, c.all)
			}
		})
	}
}

// What rules say of a range is what they say of each of its keys.
func TestWhatRulesSayOfARange(t *testing.T) {
	rules := []measure.SumRule{{Keys: &measure.KeyRange{First: 0, Last: 9}, Form: measure.SumHost}, {Keys: &measure.KeyRange{First: 10, Last: 19}, Form: measure.SumNone}}
	all := slices.Concat(rules, []measure.SumRule{{Form: measure.SumHost}})
	for _, tc := range []struct {
		rules       []measure.SumRule
		first, last uint64
		want        string
	}{
		{nil, 0, 9, ""}, {rules, 0, 9, "host"}, {rules, 3, 3, "host"}, {rules, 10, 19, "none"},
		{rules, 5, 15, "part"}, {rules, 15, 25, "part"}, {rules, 20, 25, ""},
		{all, 20, 25, "host"}, {all, 15, 25, "part"}, {all, 12, 13, "none"},
	} {
		if got := now(tc.rules, measure.KeyRange{First: tc.first, Last: tc.last}); got != tc.want {
			t.Errorf("keys %d to %d by %v: %q, want %q", tc.first, tc.last, tc.rules, got, tc.want)
		}
	}
}
