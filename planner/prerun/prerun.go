// Package prerun plans before a run: training data in, a partition of samples
// and parameters out, with a report that judges it, and the files that a job
// and the proxies take. The commands partition and score call it.
//
// # Algorithms
//
// [AllAlgorithms] lists the partitioners that users choose by name; the command line,
// the evaluation and the benchmarks take them from it. Each is one pure function of
// package partition or of a package below it.
package prerun

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A Report judges one partition. Traffic is in parameters per step, as in
// DWW21.
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
	// Bound is 2 x total / k: each remote pair costs both its ends, so that no
	// partition of this total has a lower maximum.
	Bound  float64  `json:"bound"`
	Random Baseline `json:"random"`
	// ImprovementPercent is (random.max - max) / max x 100; nil, JSON null,
	// where max is 0 and random's is not.
	ImprovementPercent *float64 `json:"improvement_percent"`
	// UsedPerMachine is the weight of the parameters that each machine uses,
	// what theta bounds; only where there is such a bound.
	UsedPerMachine []int64 `json:"used_per_machine,omitempty"`
	// LoadPerMachine is the traffic by weight and divided by link speed; only
	// where parameters have weights or machines speeds.
	LoadPerMachine []float64 `json:"load_per_machine,omitempty"`
	// Cost is there for what one of our algorithms made.
	Cost *Cost `json:"cost,omitempty"`
	// Moved is there for a partition that went on from an earlier one.
	Moved *Moved `json:"moved,omitempty"`
	// Streaming is there for a partition of data that was streamed; Seconds
	// then has the readings and the writing in it.
	Streaming *Streaming `json:"streaming,omitempty"`
}

// A Baseline is the mean of random partitions with several seeds.
type Baseline struct {
	Max   float64 `json:"max"`
	Total float64 `json:"total"`
}

// baselineSeeds is the number of random partitions that are averaged.
const baselineSeeds = 5

// Run partitions g by the algorithm and checks that the result satisfies o.
func Run(ctx context.Context, g *graph.Graph, al Algorithm, o partition.Options) (*partition.Assignment, *Cost, error) {
	m := newMeter()
	o.Phase = m.begin
	a, err := al.Partition(ctx, g, o)
	cost := m.end(g.Edges())
	if err != nil {
		return nil, nil, fmt.Errorf("partitioning by %s: %w", al.Name, err)
	}
	if err := partition.Check(g, a, o); err != nil {
		return nil, nil, fmt.Errorf("partitioning by %s gave no valid answer: %w", al.Name, err)
	}
	return a, &cost, nil
}

// RandomBaseline averages random partitions of g, seeds 1 to 5, among the
// machines of o; o's other constraints do not bind it.
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

// Judge reports on an assignment of g, wherever it comes from.
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
	if g.Weighted() || o.Speed != nil {
		r.LoadPerMachine = partition.Loads(g, a, o)
	}
	return r
}

// improve sets ImprovementPercent.
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

// Improvement returns the improvement in percent, +Inf where nothing is left
// to move.
func (r *Report) Improvement() float64 {
	if r.ImprovementPercent == nil {
		return math.Inf(1)
	}
	return *r.ImprovementPercent
}
