package dynamic

import (
	"context"
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/multilevel"
)

// An MGP partitions the graph of the newest batches and their items from scratch whenever that has
// changed, and does not care how much moves: the baseline of DW23 Fig. 8, multilevel graph
// partitioning. Batches are fixed to their machines, since data does not move while a job trains.
type MGP struct {
	k     int
	seed  uint64
	runs  uint64
	speed []float64
	last  []Batch
}

// NewMGP returns a strategy that has seen nothing.
func NewMGP(o Options) *MGP { return &MGP{k: o.Machines, seed: o.Seed, speed: o.Speed} }

// Name implements Strategy.
func (*MGP) Name() string { return "mgp" }

// Plan implements Strategy.
func (m *MGP) Plan(it *Items, e *Epoch) ([]Move, error) {
	if same := slices.EqualFunc(e.Batches, m.last, func(a, b Batch) bool {
		return a.Machine == b.Machine && slices.Equal(a.Pulled, b.Pulled)
	}); same || len(e.Batches) < m.k {
		return nil, nil // nothing has changed, or too little is known
	}
	m.last = m.last[:0]
	var rows [][]uint64
	o := partition.Options{K: m.k, Seed: m.seed + m.runs, Speed: m.speed, Capacity: make([]float64, m.k)}
	for _, b := range e.Batches {
		m.last = append(m.last, Batch{Machine: b.Machine, Pulled: slices.Clone(b.Pulled)})
		row := make([]uint64, len(b.Pulled))
		for i, p := range b.Pulled {
			row[i] = uint64(p)
		}
		rows = append(rows, row)
		o.FixedSamples = append(o.FixedSamples, b.Machine)
		o.Capacity[b.Machine]++
	}
	if slices.Contains(o.Capacity, 0) {
		return nil, nil // a machine of which nothing is known yet
	}
	m.runs++
	g, err := graph.FromRows(rows)
	if err != nil {
		return nil, fmt.Errorf("the graph of %d batches: %w", len(rows), err)
	}
	a, err := multilevel.MBP(context.Background(), g, o)
	if err != nil {
		return nil, fmt.Errorf("partitioning %d batches and %d items: %w", g.Samples(), g.Params(), err)
	}
	var moves []Move
	for p, to := range a.Params {
		if item := int32(g.Feature(p)); it.Owner[item] != to {
			moves = append(moves, Move{item, to})
		}
	}
	return moves, nil
}
