package partition

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/require"
)

// fourSamples is 0: {1,2}, 1: {2,3}, 2: {3,4}, 3: {4,9}: parameters 1,2,3,4,9.
func fourSamples(t *testing.T) *graph.Graph {
	t.Helper()
	g := require.Value(graph.FromRows([][]uint64{{1, 2}, {2, 3}, {3, 4}, {4, 9}}))(t)
	return g
}

func TestValidate(t *testing.T) {
	g := fourSamples(t)
	for _, tc := range []struct {
		name       string
		o          Options
		want       string // "" is valid
		infeasible bool
	}{
		{"plain", Options{K: 2}, "", false},
		{"no machines", Options{}, "0 machines", false},
		{"more machines than samples", Options{K: 5}, "5 machines for 4 samples", true},
		{"negative theta", Options{K: 2, Theta: -1}, "theta -1", false},
		{"theta below one sample", Options{K: 4, Theta: 1}, "weight 5 between them", false},
		{"theta below the sample's need", Options{K: 4, Theta: 2}, "", false},
		{"theta below an equal share", Options{K: 2, Theta: 2}, "at least 3 is needed", true},
		{"capacities of another k", Options{K: 2, Capacity: []float64{1}}, "1 capacities given, want 2", false},
		{"zero capacity", Options{K: 2, Capacity: []float64{1, 0}}, "capacity of machine 1", false},
		{"negative speed", Options{K: 2, Speed: []float64{-1, 1}}, "link speed of machine 0", false},
		{"too many fixed", Options{K: 2, FixedSamples: []int32{0, 0, 0, -1}}, "fixed to machine 0, which may hold 2", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.o.Validate(g)
			if tc.want == "" {
				if err != nil {
					t.Fatalf("got %v, want no error", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q in it", err, tc.want)
			}
			if tc.infeasible && !errors.Is(err, ErrInfeasible) {
				t.Errorf("%v is not ErrInfeasible", err)
			}
		})
	}
}

func TestSampleLimits(t *testing.T) {
	g := fourSamples(t)
	weighted := require.Value(g.WithWeights(nil, []uint32{3, 1, 1, 2}))(t)
	for _, tc := range []struct {
		name string
		g    *graph.Graph
		o    Options
		want []int64
	}{
		{"even", g, Options{K: 2}, []int64{2, 2}},
		{"rounded up", g, Options{K: 3}, []int64{2, 2, 2}},
		{"capacity", g, Options{K: 2, Capacity: []float64{0.3, 0.1}}, []int64{3, 1}},
		{"capacity rounded up", g, Options{K: 2, Capacity: []float64{2, 1}}, []int64{3, 2}},
		{"weights", weighted, Options{K: 2}, []int64{4, 4}},
	} {
		if got := tc.o.SampleLimits(tc.g); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestCheck(t *testing.T) {
	g := fourSamples(t)
	good := Assignment{Samples: []int32{0, 0, 1, 1}, Params: []int32{0, 0, 1, 1, 1}}
	for _, tc := range []struct {
		name string
		a    Assignment
		o    Options
		want string
	}{
		{"good", good, Options{K: 2, Theta: 3, FixedSamples: []int32{0, -1, -1, -1}}, ""},
		{"another graph's", Assignment{Samples: []int32{0}}, Options{K: 2}, "1 samples and 0 parameters"},
		{"sample nowhere", Assignment{Samples: []int32{0, 0, 1, 2}, Params: good.Params}, Options{K: 2}, "sample 3 is on machine 2"},
		{"parameter nowhere", Assignment{Samples: good.Samples, Params: []int32{0, 0, 1, 1, -1}}, Options{K: 2}, "feature 9 is on machine -1"},
		{"unbalanced", Assignment{Samples: []int32{0, 0, 0, 1}, Params: good.Params}, Options{K: 2}, "machine 0 holds samples of weight 3"},
		{"above theta", good, Options{K: 2, Theta: 2}, "more than theta = 2"},
		{"fixed sample moved", good, Options{K: 2, FixedSamples: []int32{1, -1, -1, -1}}, "sample 0 is on machine 0 but fixed to 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Check(g, &tc.a, tc.o)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestLoads(t *testing.T) {
	g := fourSamples(t)
	a := &Assignment{Samples: []int32{0, 0, 1, 1}, Params: []int32{0, 0, 1, 1, 1}}
	// The only remote pair is worker 0's use of parameter 3 on server 1.
	if tr := Measure(g, a, 2); tr.Max != 1 || tr.Total != 1 || !slices.Equal(tr.PerMachine, []int64{1, 1}) {
		t.Errorf("Measure: got %+v", tr)
	}
	heavy := require.Value(g.WithWeights([]uint32{1, 1, 8, 1, 1}, nil))(t)
	if got := Loads(heavy, a, Options{K: 2, Speed: []float64{1, 4}}); !slices.Equal(got, []float64{8, 2}) {
		t.Errorf("Loads: got %v, want [8 2]", got)
	}
	if got := Used(heavy, a, 2); !slices.Equal(got, []int64{10, 10}) {
		t.Errorf("Used: got %v, want [10 10]", got)
	}
}
