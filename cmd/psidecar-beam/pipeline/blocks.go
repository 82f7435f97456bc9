package pipeline

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"

	"github.com/psidecar/psidecar/planner/partition/blocks"
)

func init() {
	register.DoFn6x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), func(int64, []byte), error](&formFn{})
	register.DoFn6x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), func(int64, []byte), error](&blockFn{})
	register.DoFn5x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), error](&bucketFn{})
	register.Function2x1(classOf)
	register.Function2x2(shed)
}

// classOf returns an element's route, for a function that divides by it.
func classOf(key int64, _ []byte) int { return int(key >> below) }

// shed takes the route off a key.
func shed(key int64, value []byte) (int64, []byte) { return number(key), value }

// What a block is told, and its state, come under one key.
const (
	tagBlock = 'b'
	tagReply = 'r'
)

// formFn makes blocks of their rows.
type formFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits the block, and what it asks the buckets, both in the class
// of its wave.
func (f *formFn) ProcessElement(_ context.Context, key int64, chunks func(*[]byte) bool, meta string, state, lists func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
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

// emitBlock emits a block and its lists.
func (c *Config) emitBlock(b *blocks.Block, m *Meta, class int, state, lists func(int64, []byte)) {
	state(c.blockKey(class, b.Number), b.Append([]byte{tagBlock}))
	for i, l := range b.Lists(c.K, m.Buckets) {
		lists(c.key(class, int64(i)), l.Append(nil, c.K))
	}
}

// blockFn assigns a block.
type blockFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits the block and what it tells the buckets, both in the class
// of its color.
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

// bucketFn tells blocks what others use.
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
		if f.First && m.Wave(n) != f.Wave || !f.First && blocks.Color(n) != f.Color {
			continue
		}
		reply.Others = bucket.Others(&all[i])
		emit(f.Config.blockKey(0, n), reply.Append([]byte{tagReply}))
	}
	return nil
}

// decodeLists returns the lists in the order of their blocks.
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
