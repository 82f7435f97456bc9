package twostep

import (
	"testing"

	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// TestSmallSamplesAreWhatCosts shows where TSH-2 and DPPA may lose against
// TSH-1: not by pairs, which gain where all samples are looked at, but by
// searches that see few samples, which cost TSH-1 as much.
func TestSmallSamplesAreWhatCosts(t *testing.T) {
	g := require.Value(graphs.Random{Samples: 2000, Params: 2000, Degree: 2, Seed: 1}.Build(t.Context()))(t)
	for _, k := range []int{16, 32, 64} {
		o := partition.Options{K: k, Seed: 1}
		most := func(name string, p func() (*partition.Assignment, error)) float64 {
			a := require.Value(p())(t)
			tr := partition.Measure(g, a, k)
			t.Logf("k = %d: %-18s max %d", k, name, tr.Max)
			return float64(tr.Max)
		}
		by := func(name string, r Rules) float64 {
			return most(name, func() (*partition.Assignment, error) { return Partition(t.Context(), g, o, r) })
		}
		one := by("alpha 1, all", Rules{Alpha: 1})
		if two := by("alpha 2, all", Rules{Alpha: 2}); two > one {
			t.Errorf("k = %d: pairs end at %g, single samples at %g", k, two, one)
		}
		if few := by("alpha 1, n/k", Rules{Alpha: 1, Sample: 2000 / k}); few < 1.05*one {
			t.Errorf("k = %d: n/k samples a search lead to %g, all to %g", k, few, one)
		}
		if tsh2 := most("TSH-2", func() (*partition.Assignment, error) { return TSH2(t.Context(), g, o) }); tsh2 > 1.02*one {
			t.Errorf("k = %d: TSH-2 ends at %g, TSH-1 at %g", k, tsh2, one)
		}
		if dppa := most("DPPA", func() (*partition.Assignment, error) { return DPPA(t.Context(), g, o) }); dppa > 1.03*one {
			t.Errorf("k = %d: DPPA ends at %g, TSH-1 at %g", k, dppa, one)
		}
	}
}
