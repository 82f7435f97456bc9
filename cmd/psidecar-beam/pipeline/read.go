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

// init registers functions, types and the shapes of emitters and iterators with Beam, for the
// whole package.
func init() {
	register.DoFn3x1[context.Context, Shard, func(int64, []byte), error](&countFn{})
	register.DoFn4x1[context.Context, int64, func(*[]byte) bool, func(string), error](&planFn{})
	register.DoFn4x1[context.Context, Shard, string, func(int64, []byte), error](&loadFn{})
	register.Emitter2[int64, []byte]()
	register.Emitter1[string]()
	register.Iter1[[]byte]()
	beam.RegisterType(reflect.TypeFor[Shard]())
}

// A Shard is one of the files of the data. Its fields are encoded by Beam.
type Shard struct {
	Number int // its place in the order of the samples
	Path   string
}

// eachRow calls each with every sample of a shard: its number n within the shard and its
// distinct features, ascending, which are valid until each returns. An error of each ends it.
func (s *Shard) eachRow(ctx context.Context, each func(n int64, ids []uint64) error) error {
	var n int64
	var ids []uint64
	return readFile(ctx, s.Path, func(r io.Reader) error {
		// One thread: the engine runs as many functions as it wants of the host.
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

// A count is what the first reading finds in a shard, as JSON.
type count struct {
	Shard        Shard
	Rows, Edges  int64    // samples, and their features together
	Distinct     []uint64 // an even sample of the features, see [sketch]
	DistinctFull bool     // features were left out
}

// countFn reads a shard for the first time. How large blocks can be depends on all shards, so
// none can be formed before.
type countFn struct{ Config Config }

// ProcessElement emits a count. All counts have one key, for planFn.
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

// planFn makes the plan from the counts of all shards, in one call.
type planFn struct {
	Config Config
	Shards int // how many there are
}

// ProcessElement emits the [Meta]. Counts come in any order, and a missing one is an error.
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

// partFeatures is about how many features a part of the outcome has, as partSamples is for
// samples.
const partFeatures = 1 << 20

// plan decides on blocks, buckets and parts. Its counts are in the order of the shards.
func (c *Config) plan(counts []count) (*Meta, error) {
	m := &Meta{First: make([]int64, 1, len(counts)+1)}
	sk := newSketch(sketchSize)
	for _, of := range counts {
		m.Samples += of.Rows
		m.Edges += of.Edges
		m.First = append(m.First, m.Samples)
		sk.merge(of.Distinct, of.DistinctFull)
	}
	// Validated before blocks.Fit, which relies on sensible numbers; with one block, as their
	// number is not known yet.
	m.K, m.Seed, m.Blocks = c.K, c.Seed, 1
	if err := m.Validate(); err != nil {
		return nil, err
	}
	var err error
	if m.Blocks, m.Buckets, err = blocks.Fit(m.Samples, m.Edges, c.K, c.Memory); err != nil {
		return nil, err
	}
	ids := sk.ids()
	// At least 8 of the sampled features for each part: with fewer the parts would be of very
	// different sizes.
	parts := min(int(sk.estimate()/partFeatures)+1, len(ids)/8+1)
	for p := 1; p < parts; p++ {
		m.Splits = append(m.Splits, ids[p*len(ids)/parts])
	}
	return m, m.Validate()
}

// flushBytes is how many bytes of a shard's rows are gathered before they are emitted. The
// more, the fewer and larger are the chunks of each block.
const flushBytes = 16 << 20

// loadFn reads a shard for the second time and gives its rows to their blocks.
type loadFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement emits chunks of encoded rows with the key of their block. A shard with another
// number of rows than at first has changed in between, which is an error: all samples after it
// would be numbered wrongly.
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
