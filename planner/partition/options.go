package partition

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/psidecar/psidecar/planner/graph"
)

// A Partitioner divides g among the machines that o describes. It does not change its arguments,
// and its result is a function of graph, options and seed (except with a time budget). It ends soon
// after ctx does, with ctx.Err(); an anytime algorithm whose budget runs out returns its best
// assignment so far. A result satisfies [Check].
type Partitioner func(ctx context.Context, g *graph.Graph, o Options) (*Assignment, error)

// Options describe the machines and the constraints. The zero value of all fields but K asks for
// nothing special.
type Options struct {
	K    int    // machines, each a worker and a server
	Seed uint64 // of all random choices

	// Capacity is each machine's relative share of the samples, len K; nil means equal shares. See
	// [Options.SampleLimits].
	Capacity []float64
	// Speed is the relative speed of each machine's link, len K; nil means equal speeds. Traffic is
	// divided by it (see [Loads]).
	Speed []float64
	// Theta bounds |N(D_i)|, the parameters that a machine uses as a worker, by weight if the graph
	// has weights: DWW21 Eq. (2). 0 means no bound.
	Theta int64

	// FixedSamples are the machines on which samples, len n, must be; -1 leaves one free. nil leaves
	// all free.
	FixedSamples []int32

	// From, if not nil, is an earlier assignment of most of the graph, to stay close to: len n and
	// m, with -1 for what it does not have. At most the fraction MoveAtMost of its samples, from 0
	// to 1, moves unless limits or FixedSamples require more. Package best heeds it, others ignore
	// it.
	From       *Assignment
	MoveAtMost float64

	// Budget is how long an anytime algorithm may go on improving; 0 leaves that to the algorithm.
	Budget time.Duration
	// Progress, if not nil, is called from time to time, by one goroutine at a time, with the
	// fraction of the work that is done, from 0 to 1.
	Progress func(done float64)
	// Phase, if not nil, is called by one goroutine at the beginning of each phase of the work, so
	// that its caller can measure how long each takes.
	Phase func(name string)
}

// Begin reports the beginning of a phase.
func (o *Options) Begin(phase string) {
	if o.Phase != nil {
		o.Phase(phase)
	}
}

// ErrInfeasible is wrapped by every error that says that no assignment satisfies the options, or
// that none was found.
var ErrInfeasible = errors.New("infeasible")

// Validate returns what is wrong with the options for g before any work is done: numbers out of
// range, lists of the wrong length, and constraints that contradict each other, as far as that is
// cheap to see.
func (o *Options) Validate(g *graph.Graph) error {
	n, m := g.Samples(), g.Params()
	switch {
	case o.K < 1:
		return fmt.Errorf("%d machines: at least 1", o.K)
	case o.K > n:
		return fmt.Errorf("%w: %d machines for %d samples: each machine must get a sample, use at most k = %d", ErrInfeasible, o.K, n, n)
	case o.Theta < 0:
		return fmt.Errorf("theta %d: must be positive, or 0 for no bound", o.Theta)
	}
	// An empty list means the default, so only lists of another length are wrong.
	for _, list := range []struct {
		name      string
		got, want int
	}{
		{"capacities", len(o.Capacity), o.K},
		{"link speeds", len(o.Speed), o.K},
		{"fixed samples", len(o.FixedSamples), n},
	} {
		if list.got != 0 && list.got != list.want {
			return fmt.Errorf("%d %s given, want %d", list.got, list.name, list.want)
		}
	}
	for i := range o.Capacity {
		if !(o.Capacity[i] > 0) || math.IsInf(o.Capacity[i], 1) {
			return fmt.Errorf("capacity of machine %d is %g: must be positive", i, o.Capacity[i])
		}
	}
	for i := range o.Speed {
		if !(o.Speed[i] > 0) || math.IsInf(o.Speed[i], 1) {
			return fmt.Errorf("link speed of machine %d is %g: must be positive", i, o.Speed[i])
		}
	}
	if err := o.validateFixed(g); err != nil {
		return err
	}
	if err := o.validateFrom(n, m); err != nil {
		return err
	}
	return o.validateTheta(g)
}

// validateFrom checks the earlier assignment of a graph with n samples and m parameters.
func (o *Options) validateFrom(n, m int) error {
	if o.From == nil {
		return nil
	}
	if len(o.From.Samples) != n || len(o.From.Params) != m {
		return fmt.Errorf("the earlier assignment has %d samples and %d parameters, want %d and %d", len(o.From.Samples), len(o.From.Params), n, m)
	}
	if !(o.MoveAtMost >= 0 && o.MoveAtMost <= 1) {
		return fmt.Errorf("fraction of samples that may move %g: want 0 to 1", o.MoveAtMost)
	}
	for _, list := range [][]int32{o.From.Samples, o.From.Params} {
		if i := slices.IndexFunc(list, func(machine int32) bool { return machine < -1 || int(machine) >= o.K }); i >= 0 {
			return fmt.Errorf("the earlier assignment names machine %d: only 0..%d exist", list[i], o.K-1)
		}
	}
	return nil
}

// validateFixed checks that fixed samples fit within the limits.
func (o *Options) validateFixed(g *graph.Graph) error {
	load := make([]int64, o.K)
	for s, machine := range o.FixedSamples {
		if int(machine) >= o.K {
			return fmt.Errorf("sample %d is fixed to machine %d: only 0..%d exist", s, machine, o.K-1)
		}
		if machine >= 0 {
			load[machine] += int64(g.SampleWeight(s))
		}
	}
	for i, limit := range o.SampleLimits(g) {
		if load[i] > limit {
			return fmt.Errorf("%w: samples of weight %d are fixed to machine %d, which may hold %d", ErrInfeasible, load[i], i, limit)
		}
	}
	return nil
}

// validateTheta finds the two cases in which no partition can satisfy Theta: a sample that uses
// more by itself, and parameters that do not fit on k machines together. Every parameter is used
// somewhere, so the second sum is a lower bound.
func (o *Options) validateTheta(g *graph.Graph) error {
	if o.Theta == 0 {
		return nil
	}
	var total int64
	for p := range g.Params() {
		total += int64(g.ParamWeight(p))
	}
	if total > o.Theta*int64(o.K) {
		return fmt.Errorf("%w: theta = %d, but %d machines must hold parameters of weight %d between them: at least %d is needed",
			ErrInfeasible, o.Theta, o.K, total, (total+int64(o.K)-1)/int64(o.K))
	}
	for s := range g.Samples() {
		var need int64
		for _, p := range g.ParamsOf(s) {
			need += int64(g.ParamWeight(int(p)))
		}
		if need > o.Theta {
			return fmt.Errorf("%w: theta = %d, but sample %d alone uses parameters of weight %d", ErrInfeasible, o.Theta, s, need)
		}
	}
	return nil
}

// SampleLimits returns the largest weight of samples for each machine, len K: ceil(n/k) if machines
// and samples are alike, as in DWW21, else each machine's share of the total weight by Capacity,
// rounded up. If samples differ in weight, a machine may exceed its limit by less than the heaviest
// sample, since an exact division need not exist.
func (o *Options) SampleLimits(g *graph.Graph) []int64 {
	limits := make([]int64, o.K)
	if o.Capacity == nil {
		even := (g.SamplesWeight() + int64(o.K) - 1) / int64(o.K)
		for i := range limits {
			limits[i] = even
		}
		return limits
	}
	var sum float64
	for _, c := range o.Capacity {
		sum += c
	}
	for i, c := range o.Capacity {
		// A share that is whole but for rounding stays whole.
		limits[i] = int64(math.Ceil(float64(g.SamplesWeight())*c/sum - 1e-6))
	}
	return limits
}
