package partition

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/psidecar/psidecar/planner/graph"
)

// Random is the baseline of DWW21 section 6.2: samples and parameters are assigned to machines
// uniformly at random. Samples fill the machines up to their limits, so that none has more than
// ceil(n/k). Each parameter goes to any machine with equal probability, or
// in proportion to link speeds if they differ.
//
// It looks at no edge. If a bound Theta is set and the draw exceeds it, Random returns an error.
func Random(ctx context.Context, g *graph.Graph, o Options) (*Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(o.Seed, 0))
	a := &Assignment{Samples: make([]int32, g.Samples()), Params: make([]int32, g.Params())}
	room := o.SampleLimits(g)
	var free []int // samples that may go anywhere, in random order
	for _, s := range random.Perm(g.Samples()) {
		if o.FixedSamples == nil || o.FixedSamples[s] < 0 {
			free = append(free, s)
			continue
		}
		a.Samples[s] = o.FixedSamples[s]
		room[a.Samples[s]] -= int64(g.SampleWeight(s))
	}
	// Evenly: each machine gets its share of what is free, in turn.
	for i, s := range free {
		machine := i % o.K
		// A machine with a small capacity, or with many fixed samples, is full earlier.
		for tries := 0; room[machine] <= 0 && tries < o.K; tries++ {
			machine = (machine + 1) % o.K
		}
		a.Samples[s] = int32(machine)
		room[machine] -= int64(g.SampleWeight(s))
	}
	for p := range a.Params {
		a.Params[p] = anyMachine(random, o)
	}
	if o.Theta > 0 {
		if err := Check(g, a, o); err != nil {
			return nil, fmt.Errorf("a random partition does not satisfy theta: %w", err)
		}
	}
	return a, ctx.Err()
}

// anyMachine draws a machine, in proportion to link speeds if there are any.
func anyMachine(random *rand.Rand, o Options) int32 {
	if o.Speed == nil {
		return int32(random.IntN(o.K))
	}
	var sum float64
	for _, speed := range o.Speed {
		sum += speed
	}
	at := random.Float64() * sum
	for i, speed := range o.Speed {
		if at -= speed; at < 0 {
			return int32(i)
		}
	}
	return int32(o.K - 1)
}
