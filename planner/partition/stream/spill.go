// This file sorts more pairs than fit in memory. Pairs of an id and a machine are added in any
// order and any number of times; they come out once each, in ascending order. What exceeds the
// memory is in sorted runs on disk meanwhile, which are merged fanIn at a time. Package stream uses
// it, and so does the writer of a placement whose keys are not in the order of the feature ids.

package stream

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// A SpilledPair says that a machine uses, or owns, a feature or key.
type SpilledPair struct {
	ID      uint64
	Machine uint16
}

func compare(a, b SpilledPair) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Machine, b.Machine))
}

const (
	pairBytes = 16 // in memory
	diskBytes = 10 // on disk
	// fanIn is how many runs are merged at a time, and so how many files are open.
	fanIn     = 16
	blockSize = 4 << 10 // buffer of each
)

// SpillOverhead is the part of a sorter's memory that holds no pairs: the buffers of files.
const SpillOverhead = (fanIn + 2) * blockSize

// A SpillSorter sorts pairs. It is for one goroutine. It must be closed, which removes its files.
type SpillSorter struct {
	dir string
	// The number of runs made so far, for their names.
	made    int
	pairs   []SpilledPair
	runs    []*os.File
	readers [fanIn]*bufio.Reader
	writer  *bufio.Writer
	spilled int64
	// The encoded pair that is being written or read.
	record [diskBytes]byte
}

// NewSpillSorter returns a sorter that takes memory bytes, all of them now, and creates its files
// in dir.
func NewSpillSorter(dir string, memory int64) (*SpillSorter, error) {
	n := (memory - SpillOverhead) / pairBytes
	if n < 1024 {
		return nil, fmt.Errorf("%d bytes to sort pairs in: at least %d are needed", memory, SpillOverhead+1024*pairBytes)
	}
	s := &SpillSorter{dir: dir, pairs: make([]SpilledPair, 0, n), writer: bufio.NewWriterSize(nil, 2*blockSize)}
	for i := range s.readers {
		s.readers[i] = bufio.NewReaderSize(nil, blockSize)
	}
	return s, nil
}

// Bytes returns the memory that the sorter takes.
func (s *SpillSorter) Bytes() int64 { return int64(cap(s.pairs))*pairBytes + SpillOverhead }

// Spilled returns the bytes that were written to disk so far.
func (s *SpillSorter) Spilled() int64 { return s.spilled }

// Add adds a pair. It writes to disk if the memory is full.
func (s *SpillSorter) Add(p SpilledPair) error {
	if len(s.pairs) == cap(s.pairs) {
		if err := s.shrink(); err != nil {
			return err
		}
	}
	s.pairs = append(s.pairs, p)
	return nil
}

// shrink sorts what is in memory and drops repetitions. If that does not free half of it, it
// becomes a run on disk. Features repeat often, so many a shrink writes nothing.
func (s *SpillSorter) shrink() error {
	s.sort()
	if len(s.pairs) <= cap(s.pairs)/2 {
		return nil
	}
	// Merge before there are more runs than readers.
	if len(s.runs) == fanIn-1 {
		if err := s.mergeRuns(); err != nil {
			return err
		}
	}
	err := s.write(func(put func(SpilledPair) error) error {
		for _, p := range s.pairs {
			if err := put(p); err != nil {
				return err
			}
		}
		return nil
	})
	s.pairs = s.pairs[:0]
	return err
}

// sort sorts the pairs in memory and drops repetitions.
func (s *SpillSorter) sort() {
	slices.SortFunc(s.pairs, compare)
	s.pairs = slices.Compact(s.pairs)
}

// mergeRuns merges all runs into one.
func (s *SpillSorter) mergeRuns() error {
	old := s.runs
	s.runs = nil
	err := s.write(func(put func(SpilledPair) error) error { return s.merge(context.Background(), old, nil, put) })
	return errors.Join(err, remove(old))
}

// write makes a run of the pairs that fill passes to put.
func (s *SpillSorter) write(fill func(put func(SpilledPair) error) error) error {
	f, err := os.Create(filepath.Join(s.dir, fmt.Sprintf("run-%p-%05d", s, s.made)))
	if err != nil {
		return fmt.Errorf("making a file to sort in: %w", err)
	}
	s.made++
	s.runs = append(s.runs, f)
	s.writer.Reset(f)
	err = fill(func(p SpilledPair) error {
		binary.LittleEndian.PutUint64(s.record[:], p.ID)
		binary.LittleEndian.PutUint16(s.record[8:], p.Machine)
		s.spilled += diskBytes
		_, err := s.writer.Write(s.record[:])
		return err
	})
	if err == nil {
		err = s.writer.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", f.Name(), err)
	}
	return nil
}

// Each calls visit with the distinct pairs in ascending order. It can be called once, and nothing
// may be added after it.
func (s *SpillSorter) Each(ctx context.Context, visit func(SpilledPair) error) error {
	s.sort()
	return s.merge(ctx, s.runs, s.pairs, visit)
}

// A head is the next pair of a run.
type head struct {
	SpilledPair
	run int // index of the reader; fanIn for the pairs in memory
}

// merge calls visit with the distinct pairs of sorted runs and of a sorted list.
func (s *SpillSorter) merge(ctx context.Context, runs []*os.File, list []SpilledPair, visit func(SpilledPair) error) error {
	var heads [fanIn + 1]head
	queue := heads[:0] // ascending: few runs, so that insertion is as good as a heap
	next := func(run int) error {
		h := head{run: run}
		if run == fanIn {
			if len(list) == 0 {
				return nil
			}
			h.SpilledPair, list = list[0], list[1:]
		} else {
			if _, err := io.ReadFull(s.readers[run], s.record[:]); err == io.EOF {
				return nil
			} else if err != nil {
				return fmt.Errorf("reading %s: %w", runs[run].Name(), err)
			}
			h.SpilledPair = SpilledPair{binary.LittleEndian.Uint64(s.record[:]), binary.LittleEndian.Uint16(s.record[8:])}
		}
		at := len(queue)
		queue = append(queue, h)
		for ; at > 0 && compare(queue[at-1].SpilledPair, h.SpilledPair) > 0; at-- {
			queue[at] = queue[at-1]
		}
		queue[at] = h
		return nil
	}
	for i, f := range runs {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("reading %s: %w", f.Name(), err)
		}
		s.readers[i].Reset(f)
		if err := next(i); err != nil {
			return err
		}
	}
	if err := next(fanIn); err != nil {
		return err
	}
	var last SpilledPair
	for visited := 0; len(queue) > 0; {
		h := queue[0]
		copy(queue, queue[1:])
		queue = queue[:len(queue)-1]
		// Each run has a pair once, but several runs may have the same.
		if visited == 0 || h.SpilledPair != last {
			if err := visit(h.SpilledPair); err != nil {
				return err
			}
			if visited++; visited%(1<<16) == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			last = h.SpilledPair
		}
		if err := next(h.run); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Close removes the sorter's files.
func (s *SpillSorter) Close() error {
	runs := s.runs
	s.runs = nil
	return remove(runs)
}

// remove closes and removes files, all of them even if some fail.
func remove(files []*os.File) error {
	var all []error
	for _, f := range files {
		all = append(all, f.Close(), os.Remove(f.Name()))
	}
	return errors.Join(all...)
}
