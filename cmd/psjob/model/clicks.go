package model

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/psidecar/psidecar/planner/dataset"
)

// The columns of a click log, as in Criteo's data sets.
const (
	ClickNumbers    = 13
	ClickCategories = 26
)

// Clicks holds rows of a click log: numbers, and one category for each categorical
// column. A category's feature id is 1 + column*buckets + its hash modulo buckets, so
// that columns never share an id, while values of one column may.
type Clicks struct {
	sparse  *Sparse // the categories of each row, in the order of the columns
	numbers []float32
	buckets int
}

// Len returns the number of rows.
func (c *Clicks) Len() int { return c.sparse.Len() }

// Sparse returns the categories as sparse rows of ClickCategories entries.
func (c *Clicks) Sparse() *Sparse { return c.sparse }

// Numbers returns the numbers of a row: ln(1+x), -0.5 if not known.
func (c *Clicks) Numbers(row int) []float32 {
	return c.numbers[row*ClickNumbers : (row+1)*ClickNumbers]
}

// NextID returns the first id above those of the categories.
func (c *Clicks) NextID() uint64 { return 1 + uint64(c.buckets)*ClickCategories }

// LoadClicks reads a worker's share of a click log: a row a line, its label (0 or 1),
// 13 numbers and 26 categories, separated by tabs or commas; an empty field means not
// known. The file may be compressed. All lines are read, those of other workers'
// shares as well, but only parsed if they are of this one.
func LoadClicks(ctx context.Context, path string, share Share, keys dataset.KeyMap, buckets int) (*Clicks, error) {
	file, err := dataset.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	set := &Clicks{buckets: buckets}
	var b Builder
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<16), 1<<20)
	n := 0
	for line := 1; lines.Scan(); line++ {
		// Reading a large file takes minutes; a node that is being stopped must not
		// finish it first.
		if line%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		// Rows are dealt out by their number among those that are not empty, which
		// all workers count alike.
		if share.Has(n) {
			if err := set.row(&b, lines.Bytes()); err != nil {
				return nil, &dataset.LineError{File: path, Line: line, Err: err}
			}
		}
		n++
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(b.labels) == 0 {
		return nil, fmt.Errorf("%s: %d rows are too few: none left for worker %d of %d", path, n, share.Index, share.Of)
	}
	if set.sparse, err = b.Finish(&keys); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

// row parses a line and adds it.
func (c *Clicks) row(b *Builder, line []byte) error {
	separator := []byte{'\t'}
	if !bytes.Contains(line, separator) {
		separator = []byte{','}
	}
	fields := bytes.Split(bytes.TrimSuffix(line, []byte{'\r'}), separator)
	if want := 1 + ClickNumbers + ClickCategories; len(fields) != want {
		return fmt.Errorf("%d columns, want %d: label, %d numbers, %d categories", len(fields), want, ClickNumbers, ClickCategories)
	}
	if label := string(fields[0]); label != "0" && label != "1" {
		return fmt.Errorf("label %.40q: want 0 or 1", label)
	}
	for i, field := range fields[1 : 1+ClickNumbers] {
		number := float32(-0.5)
		if len(field) > 0 {
			x, err := strconv.ParseFloat(string(field), 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("column %d: %.40q is no number", i+2, field)
			}
			// Counts are skewed; negative ones, of which Criteo's data have a few,
			// are taken for 0.
			number = float32(math.Log1p(max(0, x)))
		}
		c.numbers = append(c.numbers, number)
	}
	var ids [ClickCategories]uint64
	var ones [ClickCategories]float32
	for i, field := range fields[1+ClickNumbers:] {
		ids[i] = 1 + uint64(i)*uint64(c.buckets) + hash(field)%uint64(c.buckets)
		ones[i] = 1
	}
	b.Row(ids[:], ones[:], fields[0][0] == '1')
	return nil
}

// hash is FNV-1a, finished so that its low bits are good: categories that differ in
// their last letter must not share a bucket.
func hash(text []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range text {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}
