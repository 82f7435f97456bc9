package pipeline

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"

	"github.com/psidecar/psidecar/planner/partition/blocks"
)

// init registers the functions with Beam, which calls them without reflection then. The type
// parameters are those of ProcessElement.
func init() {
	register.DoFn6x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), func(int64, []byte), error](&formFn{})
	register.DoFn6x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), func(int64, []byte), error](&blockFn{})
	register.DoFn5x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), error](&bucketFn{})
	register.Function2x1(classOf)
	register.Function2x2(shed)
}

// classOf returns the number of an element's route, by which beam.Partition divides a
// collection.
func classOf(key int64, _ []byte) int { return int(key >> below) }

// shed takes the route off a key, when the element has taken it. What is left is what elements
// are grouped by.
func shed(key int64, value []byte) (int64, []byte) { return number(key), value }

// A block's state and the replies to it come to blockFn under one key. The first byte of a
// value tells them apart.
const (
	tagBlock = 'b'
	tagReply = 'r'
)

// formFn makes blocks from their rows. All rows of a block come to one call.
type formFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits the block and its questions to the buckets, both in the class of the
// wave in which the block is assigned.
func (f *formFn) ProcessElement(_ context.Context, key int64, chunks func(*[]byte) bool, meta string, state, lists func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	// Before the rows are decoded: they are what takes memory.
	defer f.Config.takeTurn()()
	var rows []blocks.Row
	var chunk []byte
	for chunks(&chunk) {
		if rows, err = blocks.DecodeRows(chunk, rows); err != nil {
			return err
		}
	}
	n := int(number(key))
	b, err := blocks.Collect(n, m.Size(n), rows)
	if err != nil {
		return err
	}
	f.Config.emitBlock(b, m, m.Wave(n), state, lists)
	return nil
}

// emitBlock emits the state of a block, and a list for each bucket.
func (c *Config) emitBlock(b *blocks.Block, m *Meta, class int, state, lists func(int64, []byte)) {
	state(c.blockKey(class, b.Number), b.Append([]byte{tagBlock}))
	for i, l := range b.Lists(c.K, m.Buckets) {
		lists(c.key(class, int64(i)), l.Append(nil, c.K))
	}
}

// blockFn assigns a block to machines, by what the buckets replied.
type blockFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits the assigned block and what it tells the buckets, both in the class of
// its color. A block whose state or one of whose replies is missing is an error: the engine has
// lost an element, and the outcome would be wrong without a sign of it.
func (f *blockFn) ProcessElement(_ context.Context, key int64, values func(*[]byte) bool, meta string, state, lists func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	defer f.Config.takeTurn()()
	var b *blocks.Block
	replies, rank := make([][]uint64, m.Buckets), make([]int64, f.Config.K)
	heard := 0
	var value []byte
	for values(&value) {
		if len(value) == 0 || value[0] != tagBlock && value[0] != tagReply {
			return fmt.Errorf("%w: neither a block nor a reply", blocks.ErrDamaged)
		}
		if value[0] == tagBlock {
			if b, err = blocks.DecodeBlock(value[1:]); err != nil {
				return err
			}
			continue
		}
		r, err := blocks.DecodeReply(value[1:], f.Config.K)
		if err != nil {
			return err
		}
		if r.Bucket >= m.Buckets {
			return fmt.Errorf("%w: bucket %d of %d", blocks.ErrDamaged, r.Bucket, m.Buckets)
		}
		for i, n := range r.Rank {
			rank[i] += n
		}
		replies[r.Bucket] = r.Others
		heard++
	}
	n := int(number(key))
	if b == nil || b.Number != n || heard != m.Buckets {
		return fmt.Errorf("block %d heard of %d of %d buckets, state there: %t", n, heard, m.Buckets, b != nil)
	}
	others, err := b.Gather(f.Config.K, replies)
	if err != nil {
		return err
	}
	if err := b.Assign(others, rank, m.Quota(n)); err != nil {
		return err
	}
	f.Config.emitBlock(b, m, blocks.Color(n), state, lists)
	return nil
}

// bucketFn tells blocks which machines the other blocks use their features on.
type bucketFn struct {
	Config Config
	// First steps have a wave, the others a color: the blocks that are told.
	First       bool
	Wave, Color int
	cache       metaCache
}

// ProcessElement emits a reply for each block that is assigned next.
func (f *bucketFn) ProcessElement(_ context.Context, key int64, lists func(*[]byte) bool, meta string, emit func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	defer f.Config.takeTurn()()
	all, err := decodeLists(lists, f.Config.K)
	if err != nil {
		return err
	}
	bucket := blocks.NewBucket(f.Config.K, all)
	reply := blocks.Reply{Bucket: int(number(key)), Rank: bucket.Rank()}
	for i := range all {
		n := all[i].Block
		// The list counts for others, but its block is not assigned next and needs no reply.
		if f.First && m.Wave(n) != f.Wave || !f.First && blocks.Color(n) != f.Color {
			continue
		}
		reply.Others = bucket.Others(&all[i])
		emit(f.Config.blockKey(0, n), reply.Append([]byte{tagReply}))
	}
	return nil
}

// decodeLists returns the lists in the order of their blocks, whatever order the engine
// delivered them in, since the outcome depends on it. Two lists of one block mean that an
// element was delivered twice.
func decodeLists(values func(*[]byte) bool, k int) ([]blocks.List, error) {
	var all []blocks.List
	var value []byte
	for values(&value) {
		l, err := blocks.DecodeList(value, k)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b blocks.List) int { return a.Block - b.Block })
	for i := 1; i < len(all); i++ {
		if all[i].Block == all[i-1].Block {
			return nil, fmt.Errorf("%w: block %d says everything twice", blocks.ErrDamaged, all[i].Block)
		}
	}
	return all, nil
}
