package twostep

import (
	"context"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// DPPA is DW23's data and parameter partition: Alg. 1 with sampling, with alpha and the sample size
// chosen by [Adapt], then Alg. 2.
func DPPA(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	return Partition(ctx, g, o, Adapt(g, o.K))
}

// Adapt chooses alpha, and the sample size of Alg. 1 as [TSH2] does, so that dividing the samples
// costs about as much as placing the parameters (DW23 section 4.2 and what follows its theorem
// 4.2). Costs are counted by the steps of the pseudo-code: Alg. 1 considers n/alpha times every set
// of up to alpha out of n/k samples (or of sampleSize, if that is more) with E/n parameters each;
// Alg. 2 considers m times |N(D_i)| candidates with up to k users each. Adapt returns the largest
// alpha that keeps the first below ten times the second: hashing reduces m, and with it what
// dividing the samples may cost.
func Adapt(g *graph.Graph, k int) Rules {
	n, m, edges := float64(g.Samples()), float64(g.Params()), float64(g.Edges())
	neighbours := min(m, edges/float64(k)) // at most |N(D_i)|
	placing := m * neighbours * float64(k)
	rules := Rules{Alpha: 1, Sample: sampleSize, dppa: true}
	dividing, subsets := edges, 1.0 // edges = n * E/n
	seen := min(max(n/float64(k), float64(rules.Sample)), n)
	for alpha := 1; alpha <= 3; alpha++ {
		subsets *= max(seen-float64(alpha)+1, 0) / float64(alpha) // seen over alpha
		if dividing*subsets <= 10*placing {
			rules.Alpha = alpha
		}
	}
	return rules
}
