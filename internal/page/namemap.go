package page

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A NamedRange names the keys from First to Last, both included.
type NamedRange struct {
	Name  string `json:"name" yaml:"name"`
	First uint64 `json:"first" yaml:"first"`
	Last  uint64 `json:"last" yaml:"last"`
	// KeysPerRow is how many consecutive keys make a row of the table; 0: it has no rows. Row
	// is the number of the first row in this range, for tables in several pieces.
	KeysPerRow uint64 `json:"keys_per_row,omitempty" yaml:"keys-per-row"`
	Row        uint64 `json:"row,omitempty" yaml:"row"`
	Job        string `json:"job,omitempty" yaml:"job"` // scheduler's host:port; empty: any job
}

// Bounds of a file: bytes, ranges, and bytes of a name.
const (
	maxBytes  = 64 << 20
	maxRanges = 200_000
	maxName   = 256
)

// A NameMap translates keys to names. It is immutable, so it may be shared by goroutines. The
// nil map names nothing. Ranges are sorted by first key, then by job; those of one job do not
// overlap.
type NameMap struct{ ranges []NamedRange } // by first key, then job

// ParseNames parses a file of names, which is YAML.
func ParseNames(text []byte) (*NameMap, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are read", len(text), maxBytes)
	}
	var ranges []NamedRange
	d := yaml.NewDecoder(bytes.NewReader(text))
	// A misspelt field would otherwise be left out in silence.
	d.KnownFields(true)
	if err := d.Decode(&ranges); err != nil && !errors.Is(err, io.EOF) { // io.EOF: it is empty
		return nil, err
	}
	return NewNameMap(ranges)
}

// NewNameMap returns the map of these ranges, which it copies. Ranges of one job must not
// overlap.
func NewNameMap(ranges []NamedRange) (*NameMap, error) {
	if len(ranges) > maxRanges {
		return nil, fmt.Errorf("%d ranges, at most %d are read", len(ranges), maxRanges)
	}
	// Sorting would change the caller's list.
	m := &NameMap{ranges: slices.Clone(ranges)}
	slices.SortStableFunc(m.ranges, func(a, b NamedRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), strings.Compare(a.Job, b.Job))
	})
	last := map[string]*NamedRange{} // by job: ranges of different jobs may overlap
	for i := range m.ranges {
		r := &m.ranges[i]
		switch before := last[r.Job]; {
		case r.Name == "" || len(r.Name) > maxName:
			return nil, fmt.Errorf("keys %d to %d: want a name of 1 to %d bytes", r.First, r.Last, maxName)
		case r.Last < r.First:
			return nil, fmt.Errorf("%s: the last key %d is below the first, %d", r.Name, r.Last, r.First)
		case before != nil && r.First <= before.Last:
			return nil, fmt.Errorf("%s and %s overlap at key %d", before.Name, r.Name, r.First)
		}
		last[r.Job] = r
	}
	return m, nil
}

// Ranges returns the ranges that apply to a job, by first key; without a job, all.
func (m *NameMap) Ranges(job string) []NamedRange {
	list := []NamedRange{}
	if m == nil {
		return list
	}
	for _, r := range m.ranges {
		if job == "" || r.Job == "" || r.Job == job {
			list = append(list, r)
		}
	}
	return list
}

// Key returns the name of a job's key, such as items[12] or bias+3; empty if it has none.
func (m *NameMap) Key(job string, key uint64) string {
	if over := m.over(job, key, key); len(over) > 0 {
		return over[0].key(key)
	}
	return ""
}

// maxNamed bounds the names in the description of a range.
const maxNamed = 3

// Keys returns the name of a range of keys, such as items[0..99], or the names of everything in
// it; empty if nothing in it has a name.
func (m *NameMap) Keys(job string, first, last uint64) string {
	if first == last {
		return m.Key(job, first)
	}
	over := m.over(job, first, last)
	switch len(over) {
	case 0:
		return ""
	case 1:
		return over[0].span(max(first, over[0].First), min(last, over[0].Last))
	}
	var all []string
	for _, r := range over {
		if !slices.Contains(all, r.Name) {
			all = append(all, r.Name)
		}
	}
	// A range over a whole server may touch thousands of tables.
	if more := len(all) - maxNamed; more > 0 {
		return strings.Join(all[:maxNamed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(all, ", ")
}

// over returns the ranges that overlap a job's keys from first to last, the job's own before
// those of any job. It searches backwards from the last range that begins in time. Of the
// ranges of one job, the first that ends too early shows that all before it do too.
func (m *NameMap) over(job string, first, last uint64) []NamedRange {
	if m == nil {
		return nil
	}
	var own, any []NamedRange
	// Ranges of different jobs may overlap: all that begin before last count.
	end, _ := slices.BinarySearchFunc(m.ranges, last, func(r NamedRange, key uint64) int {
		if r.First > key {
			return 1
		}
		return -1
	})
	missing := map[string]bool{job: true, "": true}
	for i := end - 1; i >= 0 && len(missing) > 0; i-- {
		r := m.ranges[i]
		if !missing[r.Job] {
			continue
		}
		if r.Last < first {
			delete(missing, r.Job) // those of one job do not overlap: all before end earlier
			continue
		}
		if r.Job == "" {
			any = append(any, r)
		} else {
			own = append(own, r)
		}
	}
	slices.Reverse(own)
	slices.Reverse(any)
	return append(own, any...)
}

// row returns the row of the table in which a key is, and its place in the row.
func (r *NamedRange) row(key uint64) (row, column uint64) {
	return r.Row + (key-r.First)/r.KeysPerRow, (key - r.First) % r.KeysPerRow
}

// key returns the name of a key in the range.
func (r *NamedRange) key(key uint64) string {
	switch {
	case r.KeysPerRow == 0 && r.First == r.Last:
		return r.Name
	case r.KeysPerRow == 0:
		return fmt.Sprintf("%s+%d", r.Name, key-r.First)
	}
	row, column := r.row(key)
	if r.KeysPerRow == 1 {
		return fmt.Sprintf("%s[%d]", r.Name, row)
	}
	return fmt.Sprintf("%s[%d].%d", r.Name, row, column)
}

// span returns the name of a part of the range.
func (r *NamedRange) span(first, last uint64) string {
	if first == r.First && last == r.Last && r.KeysPerRow == 0 {
		return r.Name
	}
	if r.KeysPerRow == 0 {
		return fmt.Sprintf("%s+%d..%d", r.Name, first-r.First, last-r.First)
	}
	from, _ := r.row(first)
	to, _ := r.row(last)
	if from == to {
		return fmt.Sprintf("%s[%d]", r.Name, from)
	}
	return fmt.Sprintf("%s[%d..%d]", r.Name, from, to)
}
