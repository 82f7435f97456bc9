// Package blocks partitions training data on many machines at once. Samples are divided into
// blocks, each an even sample of the data that fits into a worker's memory, and features into
// buckets. In a step some of the blocks are assigned, in parallel and without seeing each other: a
// block gives each of its samples to the machine to which it brings the fewest new features, at the
// prices of [pricedMachines], and knows of the other blocks what the buckets said before the
// step: on which machines they use its features. After each step the buckets learn from the blocks.
//
// The pipeline of cmd/psidecar-beam runs the steps on an engine; [Partition] runs them in memory
// with the same result, which is what tests compare.
//
// # Order of steps
//
// Blocks that are assigned in the same step do not see each other's choices. The first steps
// ([Waves]) therefore take few blocks, more each time, so that they agree on what belongs to whom.
// Later passes take half of the blocks in turn ([Colors]), so that the halves do not chase each
// other (restreaming: Nishimura and Ugander, KDD 2013, who also do it in parallel; gains against a
// bounded staleness: Kabiljo and others, VLDB 2017).
//
// # What travels
//
//	Block  ── List: features and their machines ──► Bucket
//	Block  ◄── Reply: machines of other blocks, ranks ── Bucket
//
// Both are encoded as in wire.go. Everything in this package is a pure function of its arguments;
// the engine decides where and when it runs, and may run it twice.
package blocks

import (
	"context"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// DefaultPasses is the number of passes over all samples after the first. More passes gain little
// more.
const DefaultPasses = 4

// Waves is the number of first steps, in which blocks get their first machines.
const Waves = 6

// Colors is the number of steps of a pass after the first.
const Colors = 2

// Color returns in which step of a pass a block is assigned.
func Color(block int) int { return block % Colors }

// Wave returns in which of the first steps a block is assigned: block 0 in the first, and the
// number of blocks grows by a constant factor from step to step.
func (l *Layout) Wave(block int) int {
	ratio := 1
	for power(ratio, Waves-1) < l.Blocks {
		ratio++
	}
	wave := 0
	for bound := 1; block >= bound; bound *= ratio {
		wave++
	}
	return wave
}

// power returns base to the exponent.
func power(base, exponent int) int {
	n := 1
	for range exponent {
		n *= base
	}
	return n
}

// LeastMemory is the smallest memory of a worker, in bytes.
const LeastMemory = 192 << 20

// base is what a worker needs for itself: the engine's client, its buffers, code.
const base = 96 << 20

// Fit returns how many blocks and buckets the data needs so that a worker that has one of either in
// memory stays within that many bytes. Half of the memory is left to the garbage collector and the
// engine's copies. Small data gets several of each too, so that there is something to distribute,
// but no block so small that the quotas of its machines bind.
func Fit(samples, edges int64, k int, memory int64) (blocks, buckets int, err error) {
	if memory < LeastMemory {
		return 0, 0, fmt.Errorf("%d bytes of memory are too little for a worker: at least %d are needed", memory, LeastMemory)
	}
	const (
		some        = 16
		leastOnEach = 128 // samples of a block for each machine
	)
	// The divisors below are bytes per edge of a block being assigned, and of a bucket being
	// merged, in the worst case of features that occur once.
	words := int64(setWords(k))
	room := (memory - base) / 2
	ofBlock := room / (30 + 24*words + int64(k))
	ofBucket := room / (110 + 40*words)
	blocks = int(max((edges+ofBlock-1)/ofBlock, min(some, samples/(leastOnEach*int64(k))), 1))
	buckets = int(max((edges+ofBucket-1)/ofBucket, some))
	if int64(blocks) > samples {
		return 0, 0, fmt.Errorf("%d bytes of memory are too little for samples of %d features in the mean: give workers more", memory, edges/max(1, samples))
	}
	return blocks, buckets, nil
}

// Options of [Partition].
type Options struct {
	K       int
	Seed    uint64
	Blocks  int // see [Fit]
	Buckets int
	Passes  int // after the first, 0 or more
}

// Partition partitions a graph in memory, step by step as a pipeline does on workers. Tests compare
// the pipeline with it.
func Partition(ctx context.Context, g *graph.Graph, o Options) (*partition.Assignment, error) {
	l := Layout{Samples: int64(g.Samples()), Blocks: o.Blocks, K: o.K, Seed: o.Seed}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if o.Buckets < 1 || o.Passes < 0 {
		return nil, errors.New("want one bucket or more, and no negative number of passes")
	}
	all := cut(g, l)
	for wave := range Waves {
		if err := step(ctx, all, l, func(block int) bool { return l.Wave(block) == wave }); err != nil {
			return nil, err
		}
	}
	for i := range o.Passes * Colors {
		if err := step(ctx, all, l, func(block int) bool { return Color(block) == i%Colors }); err != nil {
			return nil, err
		}
	}
	a := &partition.Assignment{Samples: make([]int32, g.Samples()), Params: make([]int32, g.Params())}
	for s := range a.Samples {
		a.Samples[s] = int32(all[l.BlockOf(int64(s))].On[s/o.Blocks])
	}
	return a, place(ctx, g, all, o, a.Params)
}

// cut returns the blocks of a graph.
func cut(g *graph.Graph, l Layout) []*Block {
	rows := make([][][]uint64, l.Blocks)
	for s := range g.Samples() {
		var row []uint64
		for _, p := range g.ParamsOf(s) {
			row = append(row, g.Feature(int(p)))
		}
		b := l.BlockOf(int64(s))
		rows[b] = append(rows[b], row)
	}
	all := make([]*Block, l.Blocks)
	for b := range all {
		all[b] = NewBlock(b, rows[b])
	}
	return all
}

// step makes one step: all blocks report to a single bucket, which has the content of all buckets,
// and the active ones are assigned with what it says.
func step(ctx context.Context, all []*Block, l Layout, active func(block int) bool) error {
	lists := make([]List, len(all))
	for b := range all {
		lists[b] = List{Block: b, IDs: all[b].IDs, Users: all[b].Users(l.K)}
	}
	bucket := NewBucket(l.K, lists)
	rank := bucket.Rank()
	for b := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if active(b) {
			if err := all[b].Assign(bucket.Others(&lists[b]), rank, l.Quota(b)); err != nil {
				return err
			}
		}
	}
	return nil
}

// place finds the owners of all parameters, bucket by bucket.
func place(ctx context.Context, g *graph.Graph, all []*Block, o Options, params []int32) error {
	lists := make([][]List, o.Buckets)
	for b := range all {
		for i, l := range all[b].Lists(o.K, o.Buckets) {
			lists[i] = append(lists[i], l)
		}
	}
	ownerOf := map[uint64]int32{}
	for _, of := range lists {
		bucket := NewBucket(o.K, of)
		owners, err := bucket.Owners(ctx)
		if err != nil {
			return err
		}
		for p, id := range bucket.IDs {
			ownerOf[id] = owners[p]
		}
	}
	for p := range params {
		params[p] = ownerOf[g.Feature(p)]
	}
	return nil
}

// Owners returns the owner of each of the bucket's features, such that the machine that moves most
// for the bucket moves little. Buckets do not know of each other, but a sum of level loads is
// level.
func (b *Bucket) Owners(ctx context.Context) ([]int32, error) {
	if len(b.IDs) == 0 {
		return nil, nil
	}
	rows, on := make([][]uint64, b.k), make([]int32, b.k)
	for i := range on {
		on[i] = int32(i)
	}
	for p, id := range b.IDs {
		for i := range Members(b.Users(p)) {
			rows[i] = append(rows[i], id)
		}
	}
	g, err := graph.FromRows(rows)
	if err != nil {
		return nil, fmt.Errorf("placing a bucket's features: %w", err)
	}
	return partition.FlatOwners(ctx, g, on, partition.Options{K: b.k})
}
