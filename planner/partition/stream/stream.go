// Package stream partitions training data that does not fit in memory: a
// source that can be read several times goes in, a machine for each sample and
// an owner for each parameter come out as they are found, and nothing that
// grows with the data is kept but on disk. The command partition --stream
// calls it.
//
// A first pass counts. Each further pass gives every sample to the machine that
// it brings the fewest new features, knowing for the samples to come where the
// pass before put them (restreaming: Nishimura and Ugander, KDD 2013; the
// greedy choice is that of Parsa, arXiv 1505.04636, for one sample at a time).
// What it knows of features is a table in the memory allowed; where that is too
// small the rarest are forgotten, which costs quality, but no exactness: which
// machine uses which parameter is sorted on disk after the last pass, and
// owners and traffic are found from that.
package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/psidecar/psidecar/planner/partition"
)

// A Source hands out all samples in order, the same in every pass: pass 0
// counts, passes 1 to [Options.Passes] assign. ids are the sample's distinct
// features; each returns the machine that it goes to, in pass 0 none (-1), and
// in the last pass for good.
type Source func(ctx context.Context, pass int, each func(ids []uint64) (machine int, err error)) error

// Options of streaming.
type Options struct {
	K      int
	Memory int64 // bytes that all tables and buffers take together, at least [LeastMemory]
	Passes int   // of assignment, 1 or more
	// Scratch is an existing folder for files: 10 bytes for each (machine,
	// parameter) pair and 10 + k/8 for each parameter.
	Scratch string
}

// DefaultPasses is what the command line takes unless told otherwise: with
// more, little more is gained.
const DefaultPasses = 4

// leastSlots is the least number of features that a table must hold to be of
// any use.
const leastSlots = 1024

// fixed is the memory that does not depend on the options: a block of
// parameters and the buffers of files.
const fixed = blockBytes + 2*machineBuffer + SpillOverhead + 16<<10

const machineBuffer = 32 << 10

// Of the memory beyond what is fixed, the table of features gets 11 parts in
// 16, the sorter 3 and the random baseline 2.
const (
	allParts      = 16
	sortParts     = 3
	baselineParts = 2
)

// LeastMemory returns the least memory in which k machines can be streamed to.
func LeastMemory(k int) int64 {
	words := SetWords(k)
	table := leastSlots * slotBytes(2*words, k) * allParts / (allParts - sortParts - baselineParts)
	sorter := int64(48<<10) * allParts / sortParts
	base := 256 * slotBytes(words*baselineSeeds, 0) * allParts / baselineParts
	perMachine := int64(k) * 8 * 12 // loads, sizes, turns
	return fixed + perMachine + max(table, sorter, base)
}

// A Result says how a partition came out. All of it is exact but Random, which
// is an estimate where RandomShare is below 1.
type Result struct {
	Samples, Params, Edges int64
	Traffic                partition.Traffic
	Data                   []int64 // samples on each machine
	// Used is |N(D_i)|, the parameters that each machine uses as a worker.
	Used []int64
	// RandomMax and RandomTotal are the traffic of random partitions, the mean
	// of 5, measured on RandomShare of the parameters and scaled up.
	RandomMax, RandomTotal, RandomShare float64
	// Followed are the edges whose feature was in the table in the last pass;
	// the others had no say in where their sample went.
	Followed int64
	// Memory is what all tables and buffers took, in bytes; Spilled what was
	// written to sort it.
	Memory, Spilled int64
}

// Partition streams the source and calls place with each parameter, ascending,
// and its owner.
func Partition(ctx context.Context, source Source, o Options, place func(id uint64, owner int) error) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Scratch, "psidecar-stream-*")
	if err != nil {
		return nil, fmt.Errorf("making a folder for what exceeds the memory: %w", err)
	}
	s, err := newState(o, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r, err := s.run(ctx, source, place)
	return r, errors.Join(err, s.close(), os.RemoveAll(dir))
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	switch {
	case o.K < 1 || o.K > math.MaxUint16:
		return fmt.Errorf("%d machines: streaming knows 1 to %d", o.K, math.MaxUint16)
	case o.Passes < 1:
		return fmt.Errorf("%d passes: at least 1", o.Passes)
	case o.Memory < LeastMemory(o.K):
		return fmt.Errorf("%d bytes of memory are too little for %d machines: at least %d are needed, and about %d for each feature to remember",
			o.Memory, o.K, LeastMemory(o.K), slotBytes(2*(SetWords(o.K)), o.K)*allParts*8/7/(allParts-sortParts-baselineParts))
	}
	return nil
}

// A state is what a partition has in memory.
type state struct {
	o        Options
	assigner *assigner
	random   *baseline
	pairs    *SpillSorter
	book     *book
	old, new *machineFile
	samples  int64
}

func newState(o Options, dir string) (s *state, err error) {
	s = &state{o: o}
	part := (o.Memory - fixed - int64(o.K)*8*12) / allParts
	if s.pairs, err = NewSpillSorter(dir, sortParts*part+SpillOverhead); err != nil {
		return nil, err
	}
	if s.book, err = newBook(dir, o.K); err != nil {
		return nil, err
	}
	if s.old, err = newMachineFile(dir); err == nil {
		s.new, err = newMachineFile(dir)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.random = newBaseline(o.K, baselineParts*part)
	s.assigner = newAssigner(o.K, (allParts-sortParts-baselineParts)*part)
	return s, nil
}

func (s *state) close() error {
	err := errors.Join(s.pairs.Close(), s.book.Close())
	for _, f := range []*machineFile{s.old, s.new} {
		if f != nil {
			err = errors.Join(err, f.f.Close())
		}
	}
	return err
}

func (s *state) memory() int64 {
	return fixed + int64(s.o.K)*8*12 + s.assigner.table.bytes() + s.random.table.bytes() + s.pairs.Bytes() - SpillOverhead
}

func (s *state) run(ctx context.Context, source Source, place func(id uint64, owner int) error) (*Result, error) {
	err := source(ctx, 0, func(ids []uint64) (int, error) {
		s.assigner.countFeatures(ids)
		s.random.addSample(ids)
		return -1, nil
	})
	if err != nil {
		return nil, err
	}
	s.samples = s.assigner.Row
	if int64(s.o.K) > s.samples {
		return nil, fmt.Errorf("%w: %d machines for %d samples: each machine must get a sample, use at most k = %d",
			partition.ErrInfeasible, s.o.K, s.samples, s.samples)
	}
	for pass := 1; pass <= s.o.Passes; pass++ {
		if err := s.pass(ctx, source, pass); err != nil {
			return nil, err
		}
	}
	if err := s.book.fill(ctx, s.pairs); err != nil {
		return nil, err
	}
	if err := s.book.level(ctx); err != nil {
		return nil, err
	}
	used := make([]int64, s.o.K)
	err = s.book.each(ctx, func(id uint64, owner int, users []uint64) (int, error) {
		for i := range Members(users) {
			used[i]++
		}
		return owner, place(id, owner)
	})
	if err != nil {
		return nil, err
	}
	return s.result(used), nil
}

// errChanged is what a source that differs between passes gets.
var errChanged = errors.New("the data changed between two readings of it: run again")

func (s *state) pass(ctx context.Context, source Source, pass int) error {
	s.assigner.begin(pass == 1, s.samples)
	last := pass == s.o.Passes
	err := source(ctx, pass, func(ids []uint64) (int, error) {
		if s.assigner.Row == s.samples {
			return 0, errChanged
		}
		old := -1
		if pass > 1 {
			var err error
			if old, err = s.old.readMachine(); err != nil {
				return 0, err
			}
		}
		if last {
			return s.assignLast(ids, old)
		}
		machine := s.assigner.assign(ids, old)
		return machine, s.new.put(machine)
	})
	if err != nil {
		return err
	}
	if s.assigner.Row != s.samples {
		return errChanged
	}
	if last {
		return nil
	}
	s.old, s.new = s.new, s.old
	return errors.Join(s.old.startReading(), s.new.rewind())
}

// assignLast assigns a sample for good: the sorter gets its features with the
// machine, unless the table knows that it has them.
func (s *state) assignLast(ids []uint64, old int) (int, error) {
	machine := s.assigner.choose(ids, old)
	for _, id := range ids {
		if slot := s.assigner.table.find(id); slot >= 0 {
			if now := s.assigner.now(slot); HasMember(now, machine) {
				continue
			}
		}
		if err := s.pairs.Add(SpilledPair{ID: id, Machine: uint16(machine)}); err != nil {
			return 0, err
		}
	}
	s.assigner.settle(machine)
	return machine, nil
}

func (s *state) result(used []int64) *Result {
	r := &Result{
		Samples: s.samples, Params: s.book.params, Edges: s.assigner.edges,
		Traffic: partition.Traffic{PerMachine: s.book.load, Total: s.book.total},
		Data:    s.assigner.Size, Used: used,
		RandomShare: s.random.share(), Followed: s.assigner.followed,
		Memory: s.memory(), Spilled: s.pairs.Spilled(),
	}
	r.Traffic.Max, _ = s.book.most()
	r.RandomMax, r.RandomTotal = s.random.traffic(s.book.params)
	return r
}

// A machineFile is a list of machines on disk, a sample each.
type machineFile struct {
	f   *os.File
	buf *bufio.ReadWriter
}

func newMachineFile(dir string) (*machineFile, error) {
	f, err := os.CreateTemp(dir, "machines-*")
	if err != nil {
		return nil, fmt.Errorf("making a file for the samples' machines: %w", err)
	}
	const half = machineBuffer / 2
	return &machineFile{f, bufio.NewReadWriter(bufio.NewReaderSize(f, half), bufio.NewWriterSize(f, half))}, nil
}

func (m *machineFile) put(machine int) error {
	err := m.buf.WriteByte(byte(machine))
	if err == nil {
		err = m.buf.WriteByte(byte(machine >> 8))
	}
	if err != nil {
		return fmt.Errorf("writing the samples' machines: %w", err)
	}
	return nil
}

func (m *machineFile) readMachine() (int, error) {
	var two [2]byte
	for i := range two {
		var err error
		if two[i], err = m.buf.ReadByte(); err != nil {
			return 0, fmt.Errorf("reading the samples' machines: %w", err)
		}
	}
	return int(binary.LittleEndian.Uint16(two[:])), nil
}

func (m *machineFile) startReading() error {
	if err := m.buf.Flush(); err != nil {
		return fmt.Errorf("writing the samples' machines: %w", err)
	}
	return m.rewind()
}

func (m *machineFile) rewind() error {
	if _, err := m.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("going back in the samples' machines: %w", err)
	}
	m.buf.Reader.Reset(m.f)
	m.buf.Writer.Reset(m.f)
	return nil
}
