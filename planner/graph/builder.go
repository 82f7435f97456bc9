package graph

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/dataset"
)

// blockEdges is the number of edges per block while building.
const blockEdges = 1 << 18

// A Builder collects rows and makes a graph of them. It keeps only feature ids: 4 bytes each as
// long as all of them are below 2^32, and 8 bytes from the first larger one on. [Builder.Build]
// needs at most 24 bytes per edge in memory at any time.
//
// An id that occurs twice in a row, which libffm allows, makes one edge. The zero value is empty
// and ready. A Builder is for one goroutine.
type Builder struct {
	// By row, the number of edges before it.
	starts []int64
	// All full except the last.
	blocks []block
	edges  int64
	maxID  uint64
}

// A block holds the ids of up to blockEdges edges, all in one of two widths.
type block struct {
	narrow []uint32
	wide   []uint64
}

func (b *block) len() int { return len(b.narrow) + len(b.wide) }

// Add appends rows, one sample each. It keeps nothing of rows.
func (b *Builder) Add(rows *dataset.Rows) error {
	for i := range rows.Len() {
		ids, _ := rows.Features(i)
		b.AddRow(ids)
	}
	if len(b.starts) >= math.MaxInt32 {
		return fmt.Errorf("more than %d samples: split the data", math.MaxInt32)
	}
	return nil
}

// AddRow appends one sample with the given feature ids, which it copies.
func (b *Builder) AddRow(ids []uint64) {
	b.starts = append(b.starts, b.edges)
	for len(ids) > 0 {
		last := b.room()
		free := blockEdges - last.len()
		part := ids[:min(free, len(ids))]
		ids = ids[len(part):]
		// The first large id. Only this block is converted; earlier ones stay narrow.
		if last.wide == nil && slices.Max(part) > math.MaxUint32 {
			last = b.widen()
		}
		if last.wide != nil {
			last.wide = append(last.wide, part...)
			b.maxID = max(b.maxID, slices.Max(part))
		} else {
			for _, id := range part {
				last.narrow = append(last.narrow, uint32(id))
				b.maxID = max(b.maxID, id)
			}
		}
		b.edges += int64(len(part))
	}
}

// room returns the last block, which has room for an edge.
func (b *Builder) room() *block {
	if n := len(b.blocks); n == 0 || b.blocks[n-1].len() == blockEdges {
		b.blocks = append(b.blocks, block{})
		if b.maxID > math.MaxUint32 {
			b.blocks[n].wide = make([]uint64, 0, blockEdges)
		} else {
			b.blocks[n].narrow = make([]uint32, 0, blockEdges)
		}
	}
	return &b.blocks[len(b.blocks)-1]
}

// widen converts the last block to the wide form.
func (b *Builder) widen() *block {
	last := &b.blocks[len(b.blocks)-1]
	last.wide = make([]uint64, 0, blockEdges)
	for _, id := range last.narrow {
		last.wide = append(last.wide, uint64(id))
	}
	last.narrow = nil
	return last
}

// Build returns the graph of the rows added, using all cores, and leaves the builder empty. Memory
// is the concern: at each step the previous form is dropped before the next one is allocated.
func (b *Builder) Build(ctx context.Context) (*Graph, error) {
	// The starts become the graph's, so they exist only once.
	g := &Graph{sampleStart: append(b.starts, b.edges)}
	// Drop what reading the rows has left behind.
	collect(b.edges)
	numbers, err := b.number(ctx)
	if err != nil {
		return nil, err
	}
	g.features = numbers.features()
	// Numbers are 32 bits in all tables of the partitioners.
	if len(g.features) >= math.MaxInt32 {
		return nil, fmt.Errorf("more than %d different parameters: hash the feature ids to fewer", math.MaxInt32)
	}
	g.sampleParams = MakeHuge[uint32](int(b.edges))
	if err := b.renumber(ctx, numbers, g.sampleParams); err != nil {
		return nil, err
	}
	numbers = nil
	collect(b.edges)
	*b = Builder{}
	if err := g.sortRows(ctx); err != nil {
		return nil, err
	}
	return g, g.transposeParallel(ctx)
}

// collect runs the garbage collector if the graph is large. By itself it would wait until the heap
// had doubled, and dropped tables would add to the peak.
func collect(edges int64) {
	if edges > 1<<20 {
		runtime.GC()
	}
}

// A numbering assigns parameters their numbers, in the order of their ids.
type numbering interface {
	features() []uint64           // ascending
	rank(ids *block, to []uint32) // to[i] is the number of the block's id i
}

// number finds the distinct ids: with a bitmap if that takes less than a byte per edge, otherwise
// by sorting.
func (b *Builder) number(ctx context.Context) (numbering, error) {
	if b.maxID < 1<<20 || b.maxID <= math.MaxUint32 && b.maxID/5 < uint64(b.edges) {
		return newBitmap(ctx, b.blocks, b.maxID)
	}
	return newDirectory(ctx, b.blocks, b.edges)
}

// renumber writes each edge's parameter number to to, and drops the blocks as it goes.
func (b *Builder) renumber(ctx context.Context, numbers numbering, to []uint32) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range b.blocks {
		group.Go(func() error {
			ids := &b.blocks[i]
			numbers.rank(ids, to[i*blockEdges:i*blockEdges+ids.len()])
			b.blocks[i] = block{}
			return ctx.Err()
		})
	}
	return group.Wait()
}
