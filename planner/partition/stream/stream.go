// Package stream partitions training data that does not fit in memory. A [Source] that can be read
// several times is the input; the machine of each sample and the owner of each parameter are
// delivered as they are found. What grows with the data is kept on disk only. The command psidecar
// partition --stream calls it.
//
// # Passes
//
// Pass 0 counts features. Each further pass gives every sample to the machine to which it brings
// the fewest new features, and knows for the samples still to come where the pass before put them
// (restreaming: Nishimura and Ugander, KDD 2013; the greedy choice is that of Parsa, arXiv
// 1505.04636, for one sample at a time).
//
// # What is exact
//
// What a pass knows of features is a table within the allowed memory (table.go). If that is too
// small the rarest features are forgotten. That costs quality but not exactness: after the last
// pass the pairs of parameter and machine are sorted on disk (spill.go), and owners and traffic are
// computed from all of them (level.go).
//
// # Memory
//
// Everything is allocated at the beginning within Options.Memory: the table of features, the
// sorter's buffer, and the table of the random baseline. Nothing grows after that.
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

// A Source calls each with all samples in order, the same in every pass: pass 0 counts, passes 1 to
// [Options.Passes] assign. ids are the distinct features of a sample. each returns the machine of
// the sample: -1 in pass 0, and the final one in the last pass.
type Source func(ctx context.Context, pass int, each func(ids []uint64) (machine int, err error)) error

// Options configure a partition by streaming.
type Options struct {
	K int
	// Memory is how many bytes all tables and buffers take together, at least [LeastMemory].
	Memory int64
	// Passes is the number of passes that assign, at least 1.
	Passes int
	// Scratch is an existing folder for files: 10 bytes for each (machine, parameter) pair and 10 +
	// k/8 for each parameter.
	Scratch string
}

// DefaultPasses is the default of the command line. More passes gain little more.
const DefaultPasses = 4

// leastSlots is the smallest number of features for which a table is of any use.
const leastSlots = 1024

// fixed is the memory that does not depend on the options: a block of parameters and the buffers of
// files.
const fixed = blockBytes + 2*machineBuffer + SpillOverhead + 16<<10

// machineBuffer is the buffer of each of the two files with samples' machines.
const machineBuffer = 32 << 10

const (
	// The memory beyond fixed is divided into allParts: sortParts for the sorter, baselineParts for
	// the random baseline, and the rest, 11, for the table of features.
	allParts      = 16
	sortParts     = 3
	baselineParts = 2
)

// LeastMemory returns the smallest memory with which k machines can be streamed to.
func LeastMemory(k int) int64 {
	words := SetWords(k)
	table := leastSlots * slotBytes(2*words, k) * allParts / (allParts - sortParts - baselineParts)
	sorter := int64(48<<10) * allParts / sortParts
	base := 256 * slotBytes(words*baselineSeeds, 0) * allParts / baselineParts
	perMachine := int64(k) * 8 * 12 // loads, sizes, turns
	return fixed + perMachine + max(table, sorter, base)
}

// A Result describes a partition. All of it is exact except Random*, which are estimates if
// RandomShare is below 1.
type Result struct {
	Samples, Params, Edges int64
	Traffic                partition.Traffic
	// Data is the number of samples of each machine.
	Data []int64
	// Used is |N(D_i)|, the parameters that each machine uses as a worker.
	Used []int64
	// RandomMax and RandomTotal are the traffic of random partitions, the mean of 5, measured on
	// the fraction RandomShare of the parameters and scaled up.
	RandomMax, RandomTotal, RandomShare float64
	// Followed is the number of edges whose feature was in the table in the last pass. The others
	// had no say in where their sample went.
	Followed int64
	// Memory is what all tables and buffers took, in bytes; Spilled is what was written to disk to
	// sort it.
	Memory, Spilled int64
}

// Partition streams the source and then calls place with each parameter, in ascending order, and
// its owner. It reads the source o.Passes + 1 times. Its files are removed when it returns.
func Partition(ctx context.Context, source Source, o Options, place func(id uint64, owner int) error) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Scratch, "psidecar-stream-*")
	if err != nil {
		return nil, fmt.Errorf("creating a directory for temporary files: %w", err)
	}
	s, err := newState(o, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r, err := s.run(ctx, source, place)
	return r, errors.Join(err, s.close(), os.RemoveAll(dir))
}

// Validate returns what is wrong with the options, nil if nothing is.
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

// A state is what a partition has in memory, and its open files. old has the samples' machines from
// the pass before, new those of the present one; they change places after each pass.
type state struct {
	o        Options
	assigner *assigner
	random   *baseline
	pairs    *SpillSorter
	book     *book
	old, new *machineFile
	samples  int64
}

// newState allocates all tables and opens all files. If it fails it closes what it has opened.
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

// memory returns the bytes that all tables and buffers take.
func (s *state) memory() int64 {
	return fixed + int64(s.o.K)*8*12 + s.assigner.table.bytes() + s.random.table.bytes() + s.pairs.Bytes() - SpillOverhead
}

// run makes all passes, then finds owners and delivers them.
func (s *state) run(ctx context.Context, source Source, place func(id uint64, owner int) error) (*Result, error) {
	err := source(ctx, 0, func(ids []uint64) (int, error) {
		s.assigner.countFeatures(ids)
		s.random.addSample(ids)
		return -1, nil
	})
	if err != nil {
		return nil, err
	}
	// Only now is the number of samples known, and with it the limit of each machine.
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

// errChanged is returned if the source differs between passes in the number of samples.
var errChanged = errors.New("the data changed between two readings of it: run again")

// pass makes one pass of assignment.
func (s *state) pass(ctx context.Context, source Source, pass int) error {
	s.assigner.begin(pass == 1, s.samples)
	last := pass == s.o.Passes
	err := source(ctx, pass, func(ids []uint64) (int, error) {
		// More rows than in pass 0 would exceed all limits.
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

// assignLast assigns a sample for good. The sorter gets a pair for each of its features, unless the
// table knows that this pass has put another user of the feature on the machine already, whose pair
// says the same.
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

// result returns the figures of the finished partition.
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

// A machineFile is a list of machines on disk, two bytes per sample. It is written in one pass and
// read in the next.
type machineFile struct {
	f   *os.File
	buf *bufio.ReadWriter
}

// newMachineFile creates an empty file in dir. Its reader and writer share one buffer's worth of
// memory.
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

// startReading ends writing and goes back to the beginning.
func (m *machineFile) startReading() error {
	if err := m.buf.Flush(); err != nil {
		return fmt.Errorf("writing the samples' machines: %w", err)
	}
	return m.rewind()
}

// rewind goes back to the beginning, for reading or writing, and drops what is buffered.
func (m *machineFile) rewind() error {
	if _, err := m.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("going back in the samples' machines: %w", err)
	}
	m.buf.Reader.Reset(m.f)
	m.buf.Writer.Reset(m.f)
	return nil
}
