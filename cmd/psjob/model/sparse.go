package model

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"

	"github.com/psidecar/psidecar/planner/dataset"
)

// A Share is the part of the samples that one of several workers trains on: every
// Of-th row, from row Index on.
type Share struct{ Index, Of int }

// Has reports whether row n of a file belongs to the share.
func (s Share) Has(n int) bool { return s.Of <= 1 || n%s.Of == s.Index }

// Sparse holds rows of (column, value) pairs with a yes-or-no label. A column is a
// feature that occurs in the worker's share; columns are numbered in the order of
// their keys, so that a batch's keys are sorted if its columns are.
type Sparse struct {
	keys    []uint64 // by column, ascending
	start   []int    // rows+1
	columns []uint32
	values  []float32
	labels  []bool
}

// Len returns the number of rows.
func (s *Sparse) Len() int { return len(s.labels) }

// Keys returns the keys of all columns, ascending. They belong to s.
func (s *Sparse) Keys() []uint64 { return s.keys }

// Sample returns the columns and values of a row and its label. They belong
// to s.
func (s *Sparse) Sample(row int) (columns []uint32, values []float32, yes bool) {
	from, to := s.start[row], s.start[row+1]
	return s.columns[from:to], s.values[from:to], s.labels[row]
}

// LoadSparse reads a worker's share of a libsvm or libffm file. If path is a
// directory, as `psidecar partition --out` writes one, the worker's share is the
// whole of its file shard-NNNNN.libsvm. A label above zero is a yes. With unit,
// values are scaled so that each row has length 1.
func LoadSparse(ctx context.Context, path string, share Share, keys dataset.KeyMap, unit bool) (*Sparse, error) {
	path, share, err := shardOf(path, share)
	if err != nil {
		return nil, err
	}
	var b Builder
	n := 0
	// All rows are read and counted, whoever they belong to: the shares must not
	// overlap.
	err = dataset.ReadFile(ctx, path, dataset.Options{}, func(rows *dataset.Rows) error {
		for i := range rows.Len() {
			if share.Has(n) {
				ids, values := rows.Features(i)
				b.Row(ids, values, rows.Label[i] > 0)
			}
			n++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s, err := b.Finish(&keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.Len() == 0 {
		return nil, fmt.Errorf("%s: %d rows are too few: none left for worker %d of %d; use fewer workers", path, n, share.Index, share.Of)
	}
	if unit {
		s.scaleRows()
	}
	return s, nil
}

// shardOf finds the file of a share if path is a directory of shards.
func shardOf(path string, share Share) (string, Share, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", share, fmt.Errorf("training data: %w", err)
	}
	if !info.IsDir() {
		return path, share, nil
	}
	// Not filepath.Glob, to which the directory's own name would be part of the pattern.
	files, err := fs.Glob(os.DirFS(path), "shard-*.libsvm*")
	if err != nil {
		return "", share, err
	}
	// Fewer workers would leave samples out, and more would find nothing to do, both
	// without a word.
	if len(files) != share.Of {
		return "", share, fmt.Errorf("%s has %d files shard-*.libsvm for %d workers: partition into as many parts as there are workers", path, len(files), share.Of)
	}
	slices.Sort(files)
	return filepath.Join(path, files[share.Index]), Share{0, 1}, nil
}

// A Builder gathers rows with feature ids, which Finish turns into columns.
type Builder struct {
	ids    []uint64
	values []float32
	start  []int
	labels []bool
}

// Row adds a row.
func (b *Builder) Row(ids []uint64, values []float32, yes bool) {
	b.ids = append(b.ids, ids...)
	b.values = append(b.values, values...)
	b.start = append(b.start, len(b.ids))
	b.labels = append(b.labels, yes)
}

// Finish numbers the features that occur in the order of their keys, and replaces ids
// by these numbers. The builder's values and labels become the set's.
func (b *Builder) Finish(keyMap *dataset.KeyMap) (*Sparse, error) {
	// Ids are mapped to keys once each, and not once for every time that they occur.
	distinct := slices.Clone(b.ids)
	slices.Sort(distinct)
	distinct = slices.Compact(distinct)
	type pair struct {
		key   uint64
		place int // in distinct
	}
	pairs := make([]pair, len(distinct))
	for i, id := range distinct {
		key, err := keyMap.Key(id)
		if err != nil {
			return nil, err
		}
		pairs[i] = pair{key, i}
	}
	// In the order of keys, which a key map may have scattered: columns then ascend
	// with their keys.
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(a.key, b.key) })
	s := &Sparse{
		keys: make([]uint64, len(pairs)), start: append([]int{0}, b.start...),
		columns: make([]uint32, len(b.ids)), values: b.values, labels: b.labels,
	}
	column := make([]uint32, len(pairs))
	for c, p := range pairs {
		s.keys[c] = p.key
		column[p.place] = uint32(c)
	}
	for i, id := range b.ids {
		place, _ := slices.BinarySearch(distinct, id)
		s.columns[i] = column[place]
	}
	return s, nil
}

// Columns finds which columns a batch of rows uses. The zero Columns is ready; it
// serves one set.
type Columns struct {
	batch  []int32  // the last batch, whose columns these are
	marked []uint64 // a bit for each column; all clear between calls
	place  []int32  // by column: its index in keys, valid for columns of the batch
	keys   []uint64
}

// Of returns the keys of all columns that the rows of batch use, ascending. They are
// valid until the next call with another batch: a model asks several times for the
// same one.
func (c *Columns) Of(s *Sparse, batch []int32) []uint64 {
	if len(batch) > 0 && slices.Equal(batch, c.batch) {
		return c.keys
	}
	if c.place == nil {
		c.place = make([]int32, len(s.keys))
		c.marked = make([]uint64, (len(s.keys)+63)/64)
	}
	c.batch = append(c.batch[:0], batch...)
	for _, row := range batch {
		for _, column := range s.columns[s.start[row]:s.start[row+1]] {
			c.marked[column/64] |= 1 << (column % 64)
		}
	}
	c.keys = c.keys[:0]
	// Walking over the bits sorts the columns, in time that does not depend on the
	// batch; a bit for each feature is read for a step.
	for w, word := range c.marked {
		for ; word != 0; word &= word - 1 {
			column := w*64 + bits.TrailingZeros64(word)
			c.place[column] = int32(len(c.keys))
			c.keys = append(c.keys, s.keys[column])
		}
		c.marked[w] = 0
	}
	return c.keys
}

// At returns the index of a column's key among those that Of returned.
func (c *Columns) At(column uint32) int { return int(c.place[column]) }

// scaleRows scales every row that is not all zero to length 1.
func (s *Sparse) scaleRows() {
	for row := range s.Len() {
		values := s.values[s.start[row]:s.start[row+1]]
		square := 0.0
		for _, v := range values {
			square += float64(v) * float64(v)
		}
		if square == 0 {
			continue
		}
		scale := float32(1 / math.Sqrt(square))
		for i := range values {
			values[i] *= scale
		}
	}
}
