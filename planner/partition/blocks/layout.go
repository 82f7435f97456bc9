package blocks

import (
	"fmt"
	"math"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/planner/partition"
)

// A Layout decides which samples make a block, and how many of a block's samples each machine may
// get. Samples are numbered in the order of the data. Every group of consecutive samples, as many
// as there are blocks, has one sample for each block, so that a block is an even sample of the data
// whatever its order.
type Layout struct {
	Samples int64
	Blocks  int
	K       int // machines
	Seed    uint64
}

// Validate returns what is wrong with a layout, nil if nothing is.
func (l *Layout) Validate() error {
	switch {
	case l.K < 1 || l.K > math.MaxUint16:
		return fmt.Errorf("%d machines: want 1 to %d", l.K, math.MaxUint16)
	case l.Samples < int64(l.K):
		return fmt.Errorf("%w: %d machines for %d samples: each machine must get a sample, use at most k = %d",
			partition.ErrInfeasible, l.K, l.Samples, l.Samples)
	case l.Blocks < 1 || int64(l.Blocks) > l.Samples:
		return fmt.Errorf("%d blocks for %d samples: want from 1 to one for each sample", l.Blocks, l.Samples)
	}
	return nil
}

// turn returns by how much the blocks of a group are rotated. Without that, data with a period
// would give a block always the same kind of sample.
func (l *Layout) turn(group int64) int64 {
	return int64(splitmix.Next(l.Seed^splitmix.Next(uint64(group))) % uint64(l.Blocks))
}

// BlockOf returns the block of a sample. Its number within the block is sample / Blocks.
func (l *Layout) BlockOf(sample int64) int {
	n := int64(l.Blocks)
	return int((sample%n + l.turn(sample/n)) % n)
}

// Size returns the number of samples in a block: one for each full group, and perhaps one of the
// last, incomplete group.
func (l *Layout) Size(block int) int64 {
	n := int64(l.Blocks)
	groups, rest := l.Samples/n, l.Samples%n
	if rest > 0 && (int64(block)-l.turn(groups)+n)%n < rest {
		return groups + 1
	}
	return groups
}

// Quota returns how many samples of a block each machine gets. Over all blocks no machine gets more
// than ceil(Samples/K): what is left after division goes to the machines in turn, and each block
// continues where the one before ended.
func (l *Layout) Quota(block int) []int64 {
	var before int64
	for b := range block {
		before += l.Size(b)
	}
	k, size := int64(l.K), l.Size(block)
	quota := make([]int64, l.K)
	for i := range quota {
		quota[i] = size / k
	}
	for i := range size % k {
		quota[(before+i)%k]++
	}
	return quota
}
