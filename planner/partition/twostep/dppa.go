package twostep

import (
	"context"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// DPPA is DW23's data and parameter partition: Alg. 1, sampled, with alpha and
// the sample rate chosen by [Adapt], then Alg. 2.
func DPPA(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	return Partition(ctx, g, o, Adapt(g, o.K))
}

// Adapt chooses alpha and the expected sample so that dividing the samples
// costs the same order as placing the parameters (DW23 section 4.2 and what
// follows its theorem 4.2), counted by the pseudo-code's own steps: Alg. 1
// looks at every subset of up to alpha of s samples, each of E/n parameters,
// n/alpha times; Alg. 2 looks at |N(D_i)| candidates, each with up to k users,
// m times. Hashing shrinks m and with it what Alg. 1 may cost.
func Adapt(g *graph.Graph, k int) Rules {
	n, m, edges := float64(g.Samples()), float64(g.Params()), float64(g.Edges())
	neighbours := min(m, edges/float64(k)) // at most |N(D_i)|
	budget := m * neighbours * float64(k)
	full := max(n/float64(k), 1) // the paper's expected |S|
	rules := Rules{Alpha: 1, dppa: true}
	for alpha := 1; alpha <= 3; alpha++ {
		s := affordable(budget, n, edges/n, full, alpha)
		if alpha > 1 && s < leastSample {
			break
		}
		rules.Alpha, rules.Sample = alpha, int(max(s, min(full, leastSample)))
	}
	return rules
}

// leastSample is the sample below which a larger alpha is no help.
const leastSample = 64

// affordable returns the largest expected sample, at most full, with which
// Alg. 1 stays within the budget.
func affordable(budget, n, degree, full float64, alpha int) float64 {
	within := func(s float64) bool {
		subsets, size := 0.0, 1.0
		for a := 1; a <= alpha; a++ {
			size *= (s - float64(a) + 1) / float64(a) // s over a
			subsets += max(size, 0)
		}
		return n/float64(alpha)*subsets*float64(alpha)*degree <= budget
	}
	low, high := 1.0, full
	for range 64 {
		if mid := (low + high) / 2; within(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}
