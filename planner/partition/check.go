package partition

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/graph"
)

// Check returns the first way in which an assignment violates o for g: a sample or parameter
// without a machine, too many samples on a machine, more than Theta parameters used by one, or a
// sample fixed elsewhere.
func Check(g *graph.Graph, a *Assignment, o Options) error {
	if len(a.Samples) != g.Samples() || len(a.Params) != g.Params() {
		return fmt.Errorf("the assignment has %d samples and %d parameters, the graph %d and %d",
			len(a.Samples), len(a.Params), g.Samples(), g.Params())
	}
	for s, i := range a.Samples {
		if i < 0 || int(i) >= o.K {
			return fmt.Errorf("sample %d is on machine %d: only 0..%d exist", s, i, o.K-1)
		}
		if o.FixedSamples != nil && o.FixedSamples[s] >= 0 && o.FixedSamples[s] != i {
			return fmt.Errorf("sample %d is on machine %d but fixed to %d", s, i, o.FixedSamples[s])
		}
	}
	for p, i := range a.Params {
		if i < 0 || int(i) >= o.K {
			return fmt.Errorf("feature %d is on machine %d: only 0..%d exist", g.Feature(p), i, o.K-1)
		}
	}
	if err := checkBalance(g, a, o); err != nil {
		return err
	}
	if o.Theta == 0 {
		return nil
	}
	for i, used := range Used(g, a, o.K) {
		if used > o.Theta {
			return fmt.Errorf("machine %d uses parameters of weight %d, more than theta = %d", i, used, o.Theta)
		}
	}
	return nil
}

// checkBalance checks the sample limits. A machine may exceed its limit by less than the heaviest
// sample; see [Options.SampleLimits].
func checkBalance(g *graph.Graph, a *Assignment, o Options) error {
	load := make([]int64, o.K)
	heaviest := int64(1)
	for s, i := range a.Samples {
		w := int64(g.SampleWeight(s))
		load[i] += w
		heaviest = max(heaviest, w)
	}
	for i, limit := range o.SampleLimits(g) {
		if load[i] >= limit+heaviest {
			return fmt.Errorf("machine %d holds samples of weight %d, more than its %d", i, load[i], limit)
		}
	}
	return nil
}

// Used returns, for each of k machines, the weight of N(D_i), the parameters that it uses as a
// worker.
func Used(g *graph.Graph, a *Assignment, k int) []int64 {
	used := make([]int64, k)
	seen := make([]int32, k)
	for p := range g.Params() {
		for _, s := range g.SamplesOf(p) {
			if i := a.Samples[s]; seen[i] != int32(p)+1 {
				seen[i] = int32(p) + 1
				used[i] += int64(g.ParamWeight(p))
			}
		}
	}
	return used
}

// Loads returns what each machine moves in one step, counted at both ends, weighted by the
// parameters' weights and divided by the machine's link speed. A partitioner minimizes the largest.
// With equal weights and speeds it equals [Traffic.PerMachine].
func Loads(g *graph.Graph, a *Assignment, o Options) []float64 {
	bytes := make([]int64, o.K)
	seen := make([]int32, o.K)
	for p := range g.Params() {
		owner, w := a.Params[p], int64(g.ParamWeight(p))
		for _, s := range g.SamplesOf(p) {
			worker := a.Samples[s]
			if worker == owner || seen[worker] == int32(p)+1 {
				continue
			}
			seen[worker] = int32(p) + 1
			bytes[worker] += w
			bytes[owner] += w
		}
	}
	loads := make([]float64, o.K)
	for i := range loads {
		loads[i] = float64(bytes[i])
		if o.Speed != nil {
			loads[i] /= o.Speed[i]
		}
	}
	return loads
}
