package twostep

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/partitiontest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// thousands checks 20 times as many random cases as rapid does by default.
func thousands(t *testing.T, check func(*rapid.T)) {
	for range 20 {
		rapid.Check(t, check)
	}
}

func randomRules(t *rapid.T) Rules {
	return Rules{
		Alpha:  rapid.IntRange(1, 4).Draw(t, "alpha"),
		Beta:   rapid.SampledFrom([]float64{0, 0.5, 1, 2, 3, 100}).Draw(t, "beta"),
		Sample: rapid.SampledFrom([]int{0, 0, 1, 3, 6, 100}).Draw(t, "sample"),
	}
}

func TestDivideSamplesIsAlgorithm1(t *testing.T) {
	check := func(t *rapid.T, dppa bool) {
		g := partitiontest.Graph(t, 10, 8)
		o := partitiontest.Options(t, g, 5)
		r := randomRules(t)
		if r.dppa = dppa; dppa && r.Sample == 0 {
			r.Sample = 2
		}
		got, err := divideSamples(context.Background(), g, o, r)
		want := literalDivide(g, o, r)
		if err != nil && want != nil || !slices.Equal(got, want) {
			t.Fatalf("%+v\n got %v, %v\nwant %v", r, got, err, want)
		}
	}
	t.Run("TSH", func(t *testing.T) { thousands(t, func(t *rapid.T) { check(t, false) }) })
	t.Run("DPPA", func(t *testing.T) { thousands(t, func(t *rapid.T) { check(t, true) }) })
}

func TestPlaceParamsIsAlgorithm2(t *testing.T) {
	thousands(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 10, 12)
		o := partitiontest.Options(t, g, 5)
		samples := rapid.SliceOfN(rapid.Int32Range(0, int32(o.K-1)), g.Samples(), g.Samples()).Draw(t, "samples")
		got := require.Value(PlaceParams(context.Background(), g, o, samples))(t)
		if want := literalPlace(g, o, samples); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// TestInvariants checks cover, disjointness, balance and constraints on graphs
// that are too large for the literal versions.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 200, 60)
		o := partitiontest.Options(t, g, 5)
		if rapid.Bool().Draw(t, "many machines") {
			o = partition.Options{K: rapid.IntRange(1, g.Samples()).Draw(t, "machines")}
		}
		for name, divide := range map[string]partition.Partitioner{"TSH-1": TSH1, "TSH-2": TSH2, "DPPA": DPPA} {
			a, err := divide(context.Background(), g, o)
			if err != nil {
				if o.Theta > 0 {
					continue // the bound may be too tight for the heuristic
				}
				t.Fatalf("%s: %v", name, err)
			}
			if err := partition.Check(g, a, o); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			again, err := divide(context.Background(), g, o)
			if err != nil || !slices.Equal(a.Samples, again.Samples) || !slices.Equal(a.Params, again.Params) {
				t.Fatalf("%s: two runs differ, %v", name, err)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	g := require.Value(graph.FromRows([][]uint64{{1, 2}, {2, 3}, {3, 4}, {4, 9}}))(t)
	heavy := require.Value(g.WithWeights([]uint32{1, 4e9, 4e9, 1, 1}, nil))(t)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		g    *graph.Graph
		o    partition.Options
		r    Rules
		want string
	}{
		{"alpha 0", t.Context(), g, partition.Options{K: 2}, Rules{}, "alpha 0: use 1 to 16"},
		{"negative beta", t.Context(), g, partition.Options{K: 2}, Rules{Alpha: 1, Beta: -1}, "beta -1"},
		{"negative sample", t.Context(), g, partition.Options{K: 2}, Rules{Alpha: 1, Sample: -1}, "sample of -1"},
		{"more machines than samples", t.Context(), g, partition.Options{K: 5}, Rules{Alpha: 1}, "5 machines for 4 samples"},
		{"theta too tight", t.Context(), g, partition.Options{K: 2, Theta: 3, FixedSamples: []int32{0, -1, -1, 0}}, Rules{Alpha: 1}, "theta = 3"},
		{"theta too tight for the heuristic", t.Context(), g, partition.Options{K: 2, Theta: 3, FixedSamples: []int32{0, 1, 1, -1}}, Rules{Alpha: 1}, "1 samples fit on no machine within theta = 3"},
		{"beta too small for DPPA", t.Context(), g, partition.Options{K: 2}, Rules{Alpha: 1, Beta: 0.1, Sample: 2, dppa: true}, "beta = 0.1 is too small"},
		{"weights too large", t.Context(), heavy, partition.Options{K: 2}, Rules{Alpha: 1}, "give weights in larger units"},
		{"ended", canceled, g, partition.Options{K: 2}, Rules{Alpha: 1}, "context canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := Partition(tc.ctx, tc.g, tc.o, tc.r); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
	if _, err := Partition(canceled, g, partition.Options{K: 2}, Rules{Alpha: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
