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

// A Partitioner divides g among the machines that o describes. It changes
// nothing that it is given, gives the same answer for the same graph, options
// and seed (a time budget excepted), and ends soon after ctx does: with
// ctx.Err(), or, where it is an anytime algorithm whose budget ran out, with
// the best assignment so far. What it returns passes [Check].
type Partitioner func(ctx context.Context, g *graph.Graph, o Options) (*Assignment, error)

// Options say what to divide among, and what must hold. The zero value of all
// but K asks for nothing special.
type Options struct {
	K    int    // machines, each a worker and a server
	Seed uint64 // of all random choices

	// Capacity is each machine's relative share of the samples, len K; nil
	// means that all are alike. See [Options.SampleLimits].
	Capacity []float64
	// Speed is each machine's relative link speed, len K; nil means that all
	// are alike. Traffic is divided by it (see [Loads]).
	Speed []float64
	// Theta bounds |N(D_i)|, the parameters (by weight where the graph has
	// weights) that a machine uses as a worker, DWW21 Eq. (2); 0 is no bound.
	Theta int64

	// Group names each parameter's group, len m: parameters of one group, 0 and
	// up, must lie on one machine; -1 stands alone. Nil means that all do.
	Group []int32
	// FixedSamples and FixedParams name the machine that a sample, len n, or a
	// parameter, len m, must lie on; -1 leaves it free. Nil means that all are.
	FixedSamples []int32
	FixedParams  []int32

	// From, where not nil, is an earlier assignment of most of the graph to stay
	// near to: len n and m, -1 for what it does not have. No more than MoveAtMost
	// of its samples, from 0 to 1, move unless limits or FixedSamples ask it.
	// Algorithm best takes it, others pass it over.
	From       *Assignment
	MoveAtMost float64

	// Budget is how long an anytime algorithm may go on improving; 0 leaves it
	// to the algorithm.
	Budget time.Duration
	// Progress, where not nil, is called now and then, by one goroutine at a
	// time, with the part of the work that is done, from 0 to 1.
	Progress func(done float64)
	// Keeper, where not nil, keeps where an anytime algorithm is, so that another
	// run with the same graph and options goes on from there; one that goes on
	// from where another ended improves what that found, or returns it. Algorithm
	// best takes it, others pass it over.
	Keeper Keeper
	// Phase, where not nil, is called by one goroutine when a phase of the work
	// begins, so that its caller can measure what each takes.
	Phase func(name string)
}

// ErrOtherState is wrapped by the error for a state that a [Keeper] has of
// another run.
var ErrOtherState = errors.New("the state is of another run")

// A Keeper keeps the state of a run.
type Keeper interface {
	// Load returns what was saved last, or nil where nothing was.
	Load() ([]byte, error)
	// Due reports whether it is time to save again.
	Due() bool
	// Save keeps a state in place of the one before.
	Save(state []byte) error
}

// Begin tells of the beginning of a phase.
func (o *Options) Begin(phase string) {
	if o.Phase != nil {
		o.Phase(phase)
	}
}

// ErrInfeasible is wrapped by every error that says that no assignment can
// satisfy the options.
var ErrInfeasible = errors.New("infeasible")

// Validate reports what is wrong with the options for g, before any work:
// numbers out of range, lists of the wrong length, and constraints that
// contradict each other where that is quickly seen.
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
	for _, list := range []struct {
		name      string
		got, want int
	}{
		{"capacities", len(o.Capacity), o.K},
		{"link speeds", len(o.Speed), o.K},
		{"parameter groups", len(o.Group), m},
		{"fixed samples", len(o.FixedSamples), n},
		{"fixed parameters", len(o.FixedParams), m},
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

func (o *Options) validateFrom(n, m int) error {
	if o.From == nil {
		return nil
	}
	if len(o.From.Samples) != n || len(o.From.Params) != m {
		return fmt.Errorf("the earlier assignment is of %d samples and %d parameters, want %d and %d", len(o.From.Samples), len(o.From.Params), n, m)
	}
	if !(o.MoveAtMost >= 0 && o.MoveAtMost <= 1) {
		return fmt.Errorf("%g of the samples may move: want a part from 0 to 1", o.MoveAtMost)
	}
	for _, list := range [][]int32{o.From.Samples, o.From.Params} {
		if i := slices.IndexFunc(list, func(machine int32) bool { return machine < -1 || int(machine) >= o.K }); i >= 0 {
			return fmt.Errorf("the earlier assignment names machine %d: only 0..%d exist", list[i], o.K-1)
		}
	}
	return nil
}

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
	place := map[int32]int32{} // group -> fixed machine
	for p, machine := range o.FixedParams {
		if int(machine) >= o.K {
			return fmt.Errorf("feature %d is fixed to machine %d: only 0..%d exist", g.Feature(p), machine, o.K-1)
		}
		if machine < 0 || o.Group == nil || o.Group[p] < 0 {
			continue
		}
		if first, ok := place[o.Group[p]]; ok && first != machine {
			return fmt.Errorf("%w: parameter group %d is fixed to machine %d and to machine %d", ErrInfeasible, o.Group[p], first, machine)
		}
		place[o.Group[p]] = machine
	}
	return nil
}

// validateTheta sees what no partition can mend: a sample that needs more than
// theta by itself, and parameters that together do not fit in k machines.
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

// SampleLimits returns the weight of samples that each machine may hold at
// most, len K: ceil(n/k) where machines and samples are alike, as in DWW21,
// and otherwise each machine's share by Capacity of the samples' weight,
// rounded up. Where samples differ in weight, a machine may exceed its limit
// by less than the heaviest sample, since no exact division need exist.
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
