// Package prerun plans before a run. Training data is the input; the output is a partition of
// samples and parameters, a report that judges it, and the files that a job and the proxies use.
//
// The commands of psidecar call one task each:
//
//	partition   Task      divides data and parameters
//	hash        HashTask  hashes data and measures what that costs
//	score       Score     judges an assignment that any program has made
//
// # From data to files
//
//	Input ──Graph──► graph.Graph ──Run──► partition.Assignment ──Judge──► Report
//	  │                                        │
//	  └────────────── Output.Write ◄───────────┘   shards, assignment.txt, placement.json
//
// The data is read twice, once for the graph and once for the shards, since the graph does not keep
// the text. A task first tries whether its outputs can be written: a partition may take hours.
//
// # Algorithms
//
// [AllAlgorithms] lists the partitioners that users choose by name; the command line, the
// evaluation and the benchmarks take them from it. Each is a pure function of package partition or
// of a package below it.
package prerun

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A Report judges one partition. Its JSON form is what psidecar partition --json prints. Traffic is
// in parameters per step, as in DWW21.
type Report struct {
	Algorithm  string            `json:"algorithm"`
	K          int               `json:"k"`
	Samples    int               `json:"samples"`
	Parameters int               `json:"parameters"`
	Edges      int64             `json:"edges"`
	Seconds    float64           `json:"seconds"` // of the algorithm, without reading
	Traffic    partition.Traffic `json:"traffic"`
	// DataPerMachine is the number of samples on each machine.
	DataPerMachine []int64 `json:"data_per_machine"`
	// Bound is 2 x total / k. Each remote pair costs both its ends, so no partition with this total
	// has a lower maximum.
	Bound float64 `json:"bound"`
	// Random is what a random partition of the same graph among as many machines moves.
	Random Baseline `json:"random"`
	// ImprovementPercent is (random.max - max) / max x 100. It is nil, null in JSON, if max is 0
	// and random's is not.
	ImprovementPercent *float64 `json:"improvement_percent"`
	// UsedPerMachine is the weight of the parameters that each machine uses, which theta bounds. It
	// is set only if there is such a bound.
	UsedPerMachine []int64 `json:"used_per_machine,omitempty"`
	// LoadPerMachine is the traffic by weight, divided by link speed. It is set only if parameters
	// have weights or machines have speeds.
	LoadPerMachine []float64 `json:"load_per_machine,omitempty"`
	// Cost is set if one of our algorithms has made the partition.
	Cost *Cost `json:"cost,omitempty"`
	// Moved is set if the partition continues an earlier one.
	Moved *Moved `json:"moved,omitempty"`
}

// A Baseline is the mean over random partitions with several seeds, in parameters per step. A
// single one would vary too much to compare with.
type Baseline struct {
	Max   float64 `json:"max"`
	Total float64 `json:"total"`
}

// baselineSeeds is the number of random partitions that are averaged.
const baselineSeeds = 5

// Run partitions g by an algorithm, verifies that the result satisfies o, and measures what it
// took.
func Run(ctx context.Context, g *graph.Graph, al Algorithm, o partition.Options) (*partition.Assignment, *Cost, error) {
	m := newMeter()
	o.Phase = m.begin
	a, err := al.Partition(ctx, g, o)
	cost := m.end(g.Edges())
	if err != nil {
		return nil, nil, fmt.Errorf("partitioning by %s: %w", al.Name, err)
	}
	// Algorithms check their results themselves. A fault here is a bug in one of them, and must not
	// reach the files.
	if err := partition.Check(g, a, o); err != nil {
		return nil, nil, fmt.Errorf("partitioning with %s failed: %w", al.Name, err)
	}
	return a, &cost, nil
}

// RandomBaseline averages random partitions of g with seeds 1 to 5, in parallel. Only the number of
// machines and their capacities constrain them; a random partition rarely satisfies the other
// constraints of o.
func RandomBaseline(ctx context.Context, g *graph.Graph, o partition.Options) (Baseline, error) {
	var each [baselineSeeds]partition.Traffic
	group, ctx := errgroup.WithContext(ctx)
	for i := range each {
		group.Go(func() error {
			a, err := partition.Random(ctx, g, partition.Options{K: o.K, Capacity: o.Capacity, Seed: uint64(i) + 1})
			if err != nil {
				return fmt.Errorf("partitioning at random for comparison: %w", err)
			}
			each[i] = partition.Measure(g, a, o.K)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Baseline{}, err
	}
	var b Baseline
	for _, t := range each {
		b.Max += float64(t.Max) / baselineSeeds
		b.Total += float64(t.Total) / baselineSeeds
	}
	return b, nil
}

// Judge returns the report on an assignment of g, whoever has made it. It leaves Algorithm, Seconds
// and Cost to the caller.
func Judge(g *graph.Graph, a *partition.Assignment, o partition.Options, random Baseline) *Report {
	t := partition.Measure(g, a, o.K)
	r := &Report{
		K: o.K, Samples: g.Samples(), Parameters: g.Params(), Edges: g.Edges(),
		Traffic:        t,
		DataPerMachine: make([]int64, o.K),
		Bound:          2 * float64(t.Total) / float64(o.K),
		Random:         random,
	}
	for _, machine := range a.Samples {
		r.DataPerMachine[machine]++
	}
	r.improve()
	if o.Theta > 0 {
		r.UsedPerMachine = partition.Used(g, a, o.K)
	}
	// Otherwise the loads equal the traffic.
	if g.Weighted() || o.Speed != nil {
		r.LoadPerMachine = partition.Loads(g, a, o)
	}
	return r
}

// improve sets ImprovementPercent from the traffic.
func (r *Report) improve() {
	if r.Traffic.Max == 0 && r.Random.Max != 0 {
		return
	}
	improvement := 0.0
	if r.Traffic.Max > 0 {
		improvement = (r.Random.Max - float64(r.Traffic.Max)) / float64(r.Traffic.Max) * 100
	}
	r.ImprovementPercent = &improvement
}

// Improvement returns the improvement in percent, +Inf if nothing is left to move.
func (r *Report) Improvement() float64 {
	if r.ImprovementPercent == nil {
		return math.Inf(1)
	}
	return *r.ImprovementPercent
}
