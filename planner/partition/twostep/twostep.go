// Package twostep has the partitioners that first divide the samples and then, given that, the
// parameters: TSH (DWW21 section 4) and DPPA (DW23 section 4). [TSH1], [TSH2] and [DPPA] are the
// named algorithms, [Partition] is their general form, and [PlaceParams], the second step, serves
// any other division of samples too.
//
// # First step: samples
//
// DWW21 Alg. 1 (data.go): the machine with the least load takes the set of at most alpha samples
// that brings it the fewest new parameters, again and again. A machine (machine.go) keeps the cost
// of every sample up to date (costs.go, cover.go), so a search only compares; sets of more than one
// sample are searched by branch and bound (finder.go, descent.go). Machines search in parallel
// (crew.go), with the result of the paper's sequential loop.
//
// # Second step: parameters
//
// DWW21 Alg. 2 (params.go): the machine that moves the least so far takes the parameter that adds
// the least to that. Without groups all machines prefer parameters in the same order, so one
// ranking serves all (ranking.go); with groups each has a queue of its own (queues.go). turns.go
// finds the machine whose turn it is.
//
// # Determinism
//
// The result is a function of graph, options and seed, whatever the number of cores.
package twostep

import (
	"context"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// Rules are the choices that DWW21 Alg. 1 leaves open.
type Rules struct {
	// Alpha is the largest number of samples that a machine takes at once. The search is exact, so
	// its time grows exponentially with Alpha.
	Alpha int
	// Beta is the weight of a set's size: a larger set is taken as long as each further sample
	// costs at most Beta new parameters. 0 stands for a value so large that the largest set is
	// always taken, as in the paper's examples.
	Beta float64
	// Sample is the expected number of unassigned samples that a search considers; 0 means all. The
	// paper's sampling is n/k.
	Sample int

	// dppa follows DW23 Alg. 1 where that differs: a sample of more than twice the expected size is
	// drawn again, and a set is not taken if its cost is at least Beta for each sample of the
	// machine. DW23 has no even-split rule; DWW21's is kept, or a machine could hold alpha - 1
	// samples too many.
	dppa bool
}

// validate returns the first rule that is out of range.
func (r Rules) validate() error {
	switch {
	case r.Alpha < 1 || r.Alpha > maxAlpha:
		return fmt.Errorf("alpha %d: use 1 to %d", r.Alpha, maxAlpha)
	case !(r.Beta >= 0) || math.IsInf(r.Beta, 1):
		return fmt.Errorf("beta %g: must be a positive number, or 0 for the largest subsets", r.Beta)
	case r.Sample < 0:
		return fmt.Errorf("sample of %d: must be positive, or 0 for all", r.Sample)
	}
	return nil
}

// maxAlpha bounds Alpha; even small values are impractical on large graphs.
const maxAlpha = 16

// TSH1 is DWW21's two-step heuristic that adds one sample at a time. It considers every unassigned
// sample and takes O(k |E|) time.
func TSH1(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	return Partition(ctx, g, o, Rules{Alpha: 1})
}

// TSH2 is DWW21's two-step heuristic that adds up to two samples at a time,
// found among a random sample of the unassigned ones, see sampleSize.
//
// Pairs find less traffic in all on sparse graphs: on random ones of 1,000
// samples and parameters a total lower by 8 to 20% at a sparsity of 0.999, by 0
// to 2% at 0.995, and within 1% at 0.991, for 2 to 64 machines. The busiest
// machine follows up to 16 of them. Beyond, where each gets 16 to 31 samples, the
// dearest samples, which are left to the end, come in pairs too: the largest
// |N(D_i)| ends 3 to 24% higher than with single samples, and the maximum about as
// often above as below. That is Alg. 1 as printed: all samples are looked at
// there, and the same happens where k divides n and no pair has to be split.
func TSH2(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	return Partition(ctx, g, o, Rules{Alpha: 2, Sample: sampleSize})
}

// sampleSize is how many of the unassigned samples a search looks at. The papers
// take n/k of them (DWW21 section 4.2, DW23 Alg. 1 line 3), which finds too
// little that fits well where k is large: with n = 2,000 and k = 64 there would
// be 31, which costs TSH-1 and TSH-2 11 to 25% of their maximum, more than pairs
// gain over single samples (sampling_test.go); with n = 10,000, 1,024 are still
// too few for pairs to gain anything from k = 16 on, 4,096 are enough.
const sampleSize = 4096

// Partition divides the samples by DWW21 Alg. 1 under the given rules and then the parameters by
// Alg. 2. It respects all of [partition.Options]: loads follow Capacity, costs are weights, and
// Theta closes a machine into which nothing fits any more. If Theta cannot be kept the error says
// so; another algorithm may still succeed.
func Partition(ctx context.Context, g *graph.Graph, o partition.Options, r Rules) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	samples, err := divideSamples(ctx, g, o, r)
	if err != nil {
		return nil, err
	}
	params, err := PlaceParams(ctx, g, o, samples)
	if err != nil {
		return nil, err
	}
	return &partition.Assignment{Samples: samples, Params: params}, nil
}
