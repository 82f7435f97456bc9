package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition/blocks"
)

func init() {
	register.DoFn3x1[context.Context, Shard, func(int64, []byte), error](&countFn{})
	register.DoFn4x1[context.Context, int64, func(*[]byte) bool, func(string), error](&planFn{})
	register.DoFn4x1[context.Context, Shard, string, func(int64, []byte), error](&loadFn{})
	register.Emitter2[int64, []byte]()
	register.Emitter1[string]()
	register.Iter1[[]byte]()
	beam.RegisterType(reflect.TypeFor[Shard]())
}

// A Shard is one of the files of the data.
type Shard struct {
	Number int
	Path   string
}

// eachRow calls each with every sample of a shard and its distinct features,
// ascending, which are valid until it returns.
func (s *Shard) eachRow(ctx context.Context, each func(n int64, ids []uint64) error) error {
	var n int64
	var ids []uint64
	return readFile(ctx, s.Path, func(r io.Reader) error {
		return dataset.Read(ctx, r, s.Path, dataset.Options{Workers: 1}, func(rows *dataset.Rows) error {
			for i := range rows.Len() {
				row, _ := rows.Features(i)
				ids = append(ids[:0], row...)
				slices.Sort(ids)
				if err := each(n, slices.Compact(ids)); err != nil { // libffm repeats ids
					return err
				}
				n++
			}
			return nil
		})
	})
}

// A count is what the first reading finds in a shard.
type count struct {
	Shard        Shard
	Rows, Edges  int64
	Distinct     []uint64 // an even sample of the features, see [sketch]
	DistinctFull bool     // features were left out
}

// countFn reads a shard for the first time.
type countFn struct{ Config Config }

// ProcessElement emits a count.
func (f *countFn) ProcessElement(ctx context.Context, s Shard, emit func(int64, []byte)) error {
	defer f.Config.takeTurn()()
	c := count{Shard: s}
	sk := newSketch(sketchSize)
	err := s.eachRow(ctx, func(_ int64, ids []uint64) error {
		c.Rows++
		c.Edges += int64(len(ids))
		for _, id := range ids {
			sk.add(id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.Distinct, c.DistinctFull = sk.ids(), sk.full()
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding what is in %s: %w", s.Path, err)
	}
	emit(0, text)
	return nil
}

// planFn makes the plan of all counts.
type planFn struct {
	Config Config
	Shards int
}

// ProcessElement emits a [Meta].
func (f *planFn) ProcessElement(_ context.Context, _ int64, counts func(*[]byte) bool, emit func(string)) error {
	all := make([]count, f.Shards)
	found := 0
	var text []byte
	for counts(&text) {
		var c count
		if err := json.Unmarshal(text, &c); err != nil || c.Shard.Number < 0 || c.Shard.Number >= f.Shards {
			return fmt.Errorf("%w: what is in a shard", blocks.ErrDamaged)
		}
		all[c.Shard.Number] = c
		found++
	}
	if found != f.Shards {
		return fmt.Errorf("%d of %d shards were read", found, f.Shards)
	}
	m, err := f.Config.plan(all)
	if err != nil {
		return err
	}
	out, err := m.encode()
	if err != nil {
		return fmt.Errorf("encoding what the first reading found: %w", err)
	}
	emit(out)
	return nil
}

// partFeatures is how many features a part of the outcome has, about.
const partFeatures = 1 << 20

// plan decides on blocks, buckets and parts.
func (c *Config) plan(counts []count) (*Meta, error) {
	m := &Meta{First: make([]int64, 1, len(counts)+1)}
	sk := newSketch(sketchSize)
	for _, of := range counts {
		m.Samples += of.Rows
		m.Edges += of.Edges
		m.First = append(m.First, m.Samples)
		sk.merge(of.Distinct, of.DistinctFull)
	}
	m.K, m.Seed, m.Blocks = c.K, c.Seed, 1
	if err := m.Validate(); err != nil {
		return nil, err
	}
	var err error
	if m.Blocks, m.Buckets, err = blocks.Fit(m.Samples, m.Edges, c.K, c.Memory); err != nil {
		return nil, err
	}
	ids := sk.ids()
	parts := min(int(sk.estimate()/partFeatures)+1, len(ids)/8+1)
	for p := 1; p < parts; p++ {
		m.Splits = append(m.Splits, ids[p*len(ids)/parts])
	}
	return m, m.Validate()
}

// flushBytes is how much of the rows of a shard is gathered for its blocks.
const flushBytes = 16 << 20

// loadFn reads a shard for the second time and gives its rows to their blocks.
type loadFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits rows with the key of their block.
func (f *loadFn) ProcessElement(ctx context.Context, s Shard, meta string, emit func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	defer f.Config.takeTurn()()
	chunks, bytes := make([][]byte, m.Blocks), 0
	flush := func() {
		for b, chunk := range chunks {
			if len(chunk) > 0 {
				emit(f.Config.blockKey(0, b), chunk)
				chunks[b] = nil
			}
		}
		bytes = 0
	}
	rows := m.First[s.Number+1] - m.First[s.Number]
	var read int64
	err = s.eachRow(ctx, func(n int64, ids []uint64) error {
		if read++; read > rows {
			return fmt.Errorf("%s: %w", s.Path, blocks.ErrChanged)
		}
		sample := m.First[s.Number] + n
		chunk := &chunks[m.BlockOf(sample)]
		before := len(*chunk)
		*chunk = (&blocks.Row{Sample: uint64(sample) / uint64(m.Blocks), IDs: ids}).Append(*chunk)
		if bytes += len(*chunk) - before; bytes >= flushBytes {
			flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if read != rows {
		return fmt.Errorf("%s: %w", s.Path, blocks.ErrChanged)
	}
	flush()
	return nil
}
