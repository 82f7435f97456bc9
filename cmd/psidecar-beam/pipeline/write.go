package pipeline

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/blocks"
	"github.com/psidecar/psidecar/planner/prerun"
)

// init registers the functions with Beam.
func init() {
	register.DoFn5x1[context.Context, int64, func(*[]byte) bool, string, func(int64, []byte), error](&writeFn{})
	register.DoFn5x1[context.Context, int64, func(*[]byte) bool, string, func(string), error](&finishFn{})
}

// The files of the outcome, in the folder [Config.Out].
const (
	AssignmentName = "assignment.txt"
	PlacementName  = "placement.json"
	ReportName     = "report.json"
)

// What the last function is told, by the first byte of a value.
const (
	tagSums = 's'
	tagPart = 'p'
)

// partName returns the file of a part while the outcome is written. It is in the same folder,
// since nothing says where else workers may write.
func (c *Config) partName(of kind, part int) string {
	return join(c.Out, fmt.Sprintf("%s.part-%05d", of, part))
}

// A written is what writeFn reports about a part, as JSON.
type written struct {
	Kind  kind
	Part  int
	Count int64
	Data  []int64 // samples on each machine; zero for other kinds
}

// writeFn writes a part of the outcome to a file of its own, so that all workers write at once.
type writeFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement writes the part and emits a written. Called again, it writes the same file
// again.
func (f *writeFn) ProcessElement(ctx context.Context, key int64, values func(*[]byte) bool, meta string, emit func(int64, []byte)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	defer f.Config.takeTurn()()
	w := written{Kind: kind(number(key) >> kindAt), Part: int(number(key) & (1<<kindAt - 1)), Data: make([]int64, f.Config.K)}
	if w.Kind >= kinds || w.Part >= m.parts(w.Kind) {
		return fmt.Errorf("%w: part %d of kind %d", blocks.ErrDamaged, w.Part, w.Kind)
	}
	if w.Kind == samples {
		err = f.writeSamples(ctx, m, values, &w)
	} else {
		err = f.writeOwned(ctx, values, &w)
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encoding a report: %w", err)
	}
	emit(0, append([]byte{tagPart}, text...))
	return nil
}

// writeSamples writes the machines of a part's samples as lines, in the order of the data:
// blocks have been taken from it in an interleaved order that m knows.
func (f *writeFn) writeSamples(ctx context.Context, m *Meta, values func(*[]byte) bool, w *written) error {
	of := make([][]byte, m.Blocks)
	var value []byte
	for values(&value) {
		block, n := binary.Uvarint(value)
		if n <= 0 || block >= uint64(m.Blocks) || of[block] != nil {
			return fmt.Errorf("%w: machines of samples", blocks.ErrDamaged)
		}
		of[block] = append([]byte{}, value[n:]...) // the engine may use value again
	}
	first := int64(w.Part) * m.groups() * int64(m.Blocks)
	last := min(m.Samples, first+m.groups()*int64(m.Blocks))
	return writeFile(ctx, f.Config.partName(samples, w.Part), func(out io.Writer) error {
		lines := bufio.NewWriterSize(out, 256<<10)
		for s := first; s < last; s++ {
			machines := &of[m.BlockOf(s)]
			if len(*machines) < 2 {
				return fmt.Errorf("sample %d has no machine", s)
			}
			machine := binary.LittleEndian.Uint16(*machines)
			*machines = (*machines)[2:]
			if int(machine) >= f.Config.K {
				return fmt.Errorf("sample %d is on machine %d of %d", s, machine, f.Config.K)
			}
			w.Data[machine]++
			w.Count++
			if err := writeLine(lines, machine); err != nil {
				return err
			}
		}
		return lines.Flush()
	})
}

// writeLine writes a number and a line break without allocating.
func writeLine(w *bufio.Writer, machine uint16) error {
	_, err := w.Write(append(strconv.AppendUint(w.AvailableBuffer(), uint64(machine), 10), '\n'))
	return err
}

// ownedBytes is the size of the record of a key and its owner: 8 and 2 bytes, little-endian.
const ownedBytes = 10

// writeOwned writes the owners of a part in ascending order of the ids. Those of features are
// lines, as in assignment.txt; those of keys are records, which only finishFn reads.
func (f *writeFn) writeOwned(ctx context.Context, values func(*[]byte) bool, w *written) error {
	var list []owned
	var value []byte
	var err error
	for values(&value) {
		if list, err = decodeOwned(value, list); err != nil {
			return err
		}
	}
	sortOwned(list)
	w.Count = int64(len(list))
	return writeFile(ctx, f.Config.partName(w.Kind, w.Part), func(out io.Writer) error {
		buffered := bufio.NewWriterSize(out, 256<<10)
		for _, o := range list {
			if w.Kind == params {
				err = writeLine(buffered, o.owner)
			} else {
				record := binary.LittleEndian.AppendUint64(buffered.AvailableBuffer(), o.id)
				_, err = buffered.Write(binary.LittleEndian.AppendUint16(record, o.owner))
			}
			if err != nil {
				return err
			}
		}
		return buffered.Flush()
	})
}

// finishFn makes the outcome of its parts. It is one call on one worker, and copies rather than
// computes.
type finishFn struct {
	Config Config
	cache  metaCache
}

// ProcessElement writes the assignment, then the report, and last the placement, so that a
// placement always is of a partition that is whole. It removes the parts and emits the report.
func (f *finishFn) ProcessElement(ctx context.Context, _ int64, values func(*[]byte) bool, meta string, emit func(string)) error {
	m, err := f.cache.get(meta)
	if err != nil {
		return err
	}
	defer f.Config.takeTurn()()
	report, has, err := f.gather(m, values)
	if err != nil {
		return err
	}
	err = writeFile(ctx, join(f.Config.Out, AssignmentName), func(out io.Writer) error {
		for _, of := range []kind{samples, params} {
			for part := range m.parts(of) {
				if has[of][part] {
					if err := f.copyPart(ctx, of, part, out); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	err = writeFile(ctx, join(f.Config.Out, ReportName), func(out io.Writer) error {
		_, err := out.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	if err := f.place(ctx, m, has[keys]); err != nil {
		return err
	}
	for of := range kinds {
		for part := range m.parts(of) {
			if has[of][part] {
				if err := removeFile(ctx, f.Config.partName(of, part)); err != nil {
					return fmt.Errorf("removing temporary files: %w", err)
				}
			}
		}
	}
	emit(string(text))
	return nil
}

// gather adds up the report and returns which parts there are; a part without a feature does
// not exist. It returns an error if the sums are not what was to be written, as when the engine
// has lost or repeated something.
func (f *finishFn) gather(m *Meta, values func(*[]byte) bool) (*prerun.Report, [kinds][]bool, error) {
	var has [kinds][]bool
	for of := range has {
		has[of] = make([]bool, m.parts(kind(of)))
	}
	k := f.Config.K
	r := &prerun.Report{Algorithm: Algorithm, K: k, Samples: int(m.Samples), Edges: m.Edges,
		Traffic: partition.Traffic{PerMachine: make([]int64, k)}, DataPerMachine: make([]int64, k)}
	var counts [kinds]int64
	var value []byte
	for values(&value) {
		if len(value) == 0 {
			return nil, has, fmt.Errorf("%w: an empty report", blocks.ErrDamaged)
		}
		var w written
		var s sums
		if value[0] == tagPart {
			if err := json.Unmarshal(value[1:], &w); err != nil || w.Kind < 0 || w.Kind >= kinds || w.Part < 0 || w.Part >= len(has[w.Kind]) || len(w.Data) != k {
				return nil, has, fmt.Errorf("%w: a report of a part", blocks.ErrDamaged)
			}
			has[w.Kind][w.Part] = true
			counts[w.Kind] += w.Count
			for i, n := range w.Data {
				r.DataPerMachine[i] += n
			}
			continue
		}
		if err := json.Unmarshal(value[1:], &s); err != nil || len(s.PerMachine) != k {
			return nil, has, fmt.Errorf("%w: a report of a bucket", blocks.ErrDamaged)
		}
		r.Parameters += int(s.Params)
		r.Traffic.Total += s.Total
		for i, n := range s.PerMachine {
			r.Traffic.PerMachine[i] += n
		}
	}
	for _, n := range r.Traffic.PerMachine {
		r.Traffic.Max = max(r.Traffic.Max, n)
	}
	// Each transfer counts at both its ends, and at best all machines move the same.
	r.Bound = 2 * float64(r.Traffic.Total) / float64(k)
	if want := int64(r.Parameters); counts[samples] != m.Samples || counts[params] != want || counts[keys] != want {
		return nil, has, fmt.Errorf("%d samples, %d features and %d keys were written, want %d, %d and %d",
			counts[samples], counts[params], counts[keys], m.Samples, want, want)
	}
	return r, has, nil
}

// Algorithm is the name of this algorithm in reports and placements.
const Algorithm = "blocks"

// copyPart appends the file of a part to out.
func (f *finishFn) copyPart(ctx context.Context, of kind, part int, out io.Writer) error {
	return readFile(ctx, f.Config.partName(of, part), func(in io.Reader) error {
		_, err := io.Copy(out, in)
		return err
	})
}

// place writes the placement, from the parts of keys that exist, one after the other: they are
// in the order of the keys, as the writer wants them.
func (f *finishFn) place(ctx context.Context, m *Meta, has []bool) error {
	p := &plan.Placement{K: f.Config.K, Algorithm: Algorithm, Server: f.Config.Servers}
	if p.Server == nil {
		for i := range p.K {
			p.Server = append(p.Server, i)
		}
	}
	return writeFile(ctx, join(f.Config.Out, PlacementName), func(out io.Writer) error {
		buffered := bufio.NewWriterSize(out, 256<<10)
		w, err := plan.NewPlacementWriter(buffered, p)
		if err != nil {
			return err
		}
		for part := range m.parts(keys) {
			if !has[part] {
				continue
			}
			err := readFile(ctx, f.Config.partName(keys, part), func(in io.Reader) error { return addKeys(w, bufio.NewReaderSize(in, 256<<10)) })
			if err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil {
			return err
		}
		return buffered.Flush()
	})
}

// addKeys adds the records of a part to a placement. A record cut off is an error.
func addKeys(w *plan.PlacementWriter, in io.Reader) error {
	var record [ownedBytes]byte
	for {
		if _, err := io.ReadFull(in, record[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading keys: %w", err)
		}
		if err := w.Add(binary.LittleEndian.Uint64(record[:]), int32(binary.LittleEndian.Uint16(record[8:]))); err != nil {
			return err
		}
	}
}
