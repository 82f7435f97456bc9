package prerun

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition/stream"

	"github.com/psidecar/psidecar/planner/plan"
)

// Streaming is the part of a report that only a streamed partition has.
type Streaming struct {
	// Passes is the number of passes that assign; one more has counted.
	Passes int `json:"passes"`
	// MemoryBytes is what tables and buffers took, SpilledBytes what was written to scratch files
	// to sort it.
	MemoryBytes  int64 `json:"memory_bytes"`
	SpilledBytes int64 `json:"spilled_bytes"`
	// FollowedPercent is the share of the edges whose feature was in the table in the last pass.
	FollowedPercent float64 `json:"followed_percent"`
	// RandomSamplePercent is the share of the parameters on which the random baseline was measured.
	// Below 100 the baseline is an estimate.
	RandomSamplePercent float64 `json:"random_sample_percent"`
}

// Stream partitions data that need not fit in memory: shards of libsvm text, read one after the
// other like a single file, o.Passes + 1 times. If out has a directory its files are written in the
// last pass, as assignments and owners become known. The shards' Progress gets the fraction of all
// readings.
//
// If it fails, shards and assignment may be incomplete; placement.json is only there if everything
// else is.
func Stream(ctx context.Context, shards []Input, o stream.Options, out Output) (*Report, error) {
	start := time.Now()
	var files *streamFiles
	if out.Dir != "" {
		var err error
		if files, err = out.createStreamed(o); err != nil {
			return nil, err
		}
	}
	r, err := stream.Partition(ctx, rowsOf(shards, o.Passes, files), o, func(id uint64, owner int) error {
		if files == nil {
			return nil
		}
		return files.parameter(id, owner)
	})
	if files != nil {
		if err == nil {
			err = files.finish(ctx)
		}
		// Close also removes the placement if it is not complete.
		err = errors.Join(err, files.Close())
	}
	if err != nil {
		return nil, err
	}
	report := &Report{
		Algorithm: "stream", K: o.K, Samples: int(r.Samples), Parameters: int(r.Params), Edges: r.Edges,
		Seconds:        time.Since(start).Seconds(),
		Traffic:        r.Traffic,
		DataPerMachine: r.Data,
		Bound:          2 * float64(r.Traffic.Total) / float64(o.K),
		Random:         Baseline{r.RandomMax, r.RandomTotal},
		Streaming: &Streaming{
			Passes: o.Passes, MemoryBytes: r.Memory, SpilledBytes: r.Spilled,
			FollowedPercent:     100 * float64(r.Followed) / float64(max(1, r.Edges)),
			RandomSamplePercent: 100 * r.RandomShare,
		},
	}
	report.improve()
	return report, nil
}

// rowsOf returns the source of the shards' rows. The last pass also writes them to their machines'
// shards.
func rowsOf(shards []Input, passes int, files *streamFiles) stream.Source {
	var sorted []uint64
	parts := partsBefore(shards)
	return func(ctx context.Context, pass int, each func([]uint64) (int, error)) error {
		for i, in := range shards {
			// in is a copy, so each pass wraps the caller's function only once.
			if show := in.Progress; show != nil {
				in.Progress = func(done float64) {
					show((float64(pass) + parts[i] + done*(parts[i+1]-parts[i])) / float64(passes+1))
				}
			}
			err := in.readRows(ctx, func(rows *dataset.Rows, hashed [][]uint64) error {
				for r := range rows.Len() {
					ids, _ := rows.Features(r)
					if hashed != nil {
						ids = hashed[r]
					}
					// The source must yield distinct features.
					if rows.Fields(r) != nil || hashed != nil { // an id may stand twice
						sorted = append(sorted[:0], ids...)
						slices.Sort(sorted)
						ids = slices.Compact(sorted)
					}
					machine, err := each(ids)
					if err != nil {
						return err
					}
					// Only the machines of the last pass are final.
					if pass != passes || files == nil {
						continue
					}
					if err := files.sample(machine, rows, r, hashed); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// partsBefore returns the fraction of the bytes of all shards before each one, and 1 at the end,
// for progress. Files that cannot be examined count as one byte; reading them will say why.
func partsBefore(shards []Input) []float64 {
	parts := make([]float64, len(shards)+1)
	for i, in := range shards {
		size := int64(1)
		if info, err := os.Stat(in.Path); err == nil {
			size = max(info.Size(), 1)
		}
		parts[i+1] = parts[i] + float64(size)
	}
	all := parts[len(shards)]
	for i := range parts {
		parts[i] /= all
	}
	return parts
}

// streamFiles are the files of an [Output] while they are written. The placement needs its keys in
// ascending order, but parameters come in the order of feature ids; so keys and owners pass through
// a sorter on disk.
type streamFiles struct {
	open       []*os.File
	shards     []*dataset.Writer
	assignment *bufio.Writer
	placement  *bufio.Writer
	keys       *plan.PlacementWriter
	keyMap     dataset.KeyMap
	// Keys and owners.
	byKey *stream.SpillSorter
	line  []byte
	// The placement's name until it is complete; it is renamed to finished.
	unfinished string
	finished   string
}

// sortBytes is the memory for sorting keys, in addition to what the partition takes.
const sortBytes = 8 << 20

// createStreamed creates the files, all K shards at once, because rows come in no order of
// machines. If it fails it closes those that it has created.
func (out Output) createStreamed(o stream.Options) (_ *streamFiles, err error) {
	if err := out.Prepare(); err != nil {
		return nil, err
	}
	if err := out.removePlacement(); err != nil {
		return nil, err
	}
	s := &streamFiles{keyMap: out.KeyMap}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	create := func(name string) (*os.File, error) {
		f, err := os.Create(filepath.Join(out.Dir, name))
		if err != nil {
			return nil, fmt.Errorf("writing the output: %w", err)
		}
		s.open = append(s.open, f)
		return f, nil
	}
	for i := range out.K {
		f, err := create(ShardName(i))
		if err != nil {
			return nil, err
		}
		s.shards = append(s.shards, dataset.NewWriter(f))
	}
	a, err := create(assignmentName)
	if err != nil {
		return nil, err
	}
	s.assignment = bufio.NewWriterSize(a, 256<<10)
	s.finished = out.placementPath()
	s.unfinished = s.finished + ".part"
	// A proxy that finds placement.json may start at any time, so the file appears only when it is
	// complete.
	f, err := create(filepath.Base(s.unfinished))
	if err != nil {
		return nil, err
	}
	s.placement = bufio.NewWriterSize(f, 256<<10)
	p := &plan.Placement{K: out.K, Algorithm: "stream", Server: out.Servers}
	if p.Server == nil {
		for i := range out.K {
			p.Server = append(p.Server, i)
		}
	}
	if s.keys, err = plan.NewPlacementWriter(s.placement, p); err != nil {
		return nil, err
	}
	// Keys are in another order than ids if a key map spreads them.
	s.byKey, err = stream.NewSpillSorter(o.Scratch, sortBytes)
	return s, err
}

// sample writes a row to its machine's shard and its machine to the assignment.
func (s *streamFiles) sample(machine int, rows *dataset.Rows, r int, hashed [][]uint64) error {
	if err := writeRow(s.shards[machine], rows, r, hashed); err != nil {
		return fmt.Errorf("writing a shard: %w", err)
	}
	return s.assign(machine)
}

// assign appends a machine to the assignment. Samples come first, then parameters, which is the
// order of the file.
func (s *streamFiles) assign(machine int) error {
	s.line = append(strconv.AppendInt(s.line[:0], int64(machine), 10), '\n')
	if _, err := s.assignment.Write(s.line); err != nil {
		return fmt.Errorf("writing the assignment: %w", err)
	}
	return nil
}

// parameter records the owner of a feature id.
func (s *streamFiles) parameter(id uint64, owner int) error {
	if err := s.assign(owner); err != nil {
		return err
	}
	key, err := s.keyMap.Key(id)
	if err != nil {
		return fmt.Errorf("placing feature id %d: %w", id, err)
	}
	return s.byKey.Add(stream.SpilledPair{ID: key, Machine: uint16(owner)})
}

// finish writes the placement, flushes all files, and gives the placement its name.
func (s *streamFiles) finish(ctx context.Context) error {
	// The sorter merges its runs into the ascending order that the placement needs.
	err := s.byKey.Each(ctx, func(p stream.SpilledPair) error { return s.keys.Add(p.ID, int32(p.Machine)) })
	if err != nil {
		return err
	}
	if err := s.keys.Close(); err != nil {
		return err
	}
	flush := []interface{ Flush() error }{s.assignment, s.placement}
	for _, w := range s.shards {
		flush = append(flush, w)
	}
	for _, w := range flush {
		if err := w.Flush(); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
	}
	if err := os.Rename(s.unfinished, s.finished); err != nil {
		return fmt.Errorf("writing the placement: %w", err)
	}
	return nil
}

// Close closes all files and removes an incomplete placement.
func (s *streamFiles) Close() error {
	var all []error
	for _, f := range s.open {
		all = append(all, f.Close())
	}
	if s.byKey != nil {
		all = append(all, s.byKey.Close())
	}
	// After finish the name does not exist any more.
	if err := os.Remove(s.unfinished); err != nil && s.unfinished != "" && !errors.Is(err, os.ErrNotExist) {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// Table prints what a streamed partition took, for people.
func (s *Streaming) Table(w io.Writer) error {
	_, err := fmt.Fprintf(w, "streamed: %d passes in %.1f MiB of tables, %.1f MiB spilled; %.1f%% of the edges followed; random measured on %.1f%% of the parameters\n",
		s.Passes, float64(s.MemoryBytes)/(1<<20), float64(s.SpilledBytes)/(1<<20), s.FollowedPercent, s.RandomSamplePercent)
	return err
}

// Shards returns the files that path stands for: the file itself, or, for a folder, the files in it
// in the order of their names, without hidden ones and subfolders.
func Shards(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("opening the data: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("opening the data: %w", err)
	}
	var files []string
	for _, e := range entries {
		if e.Name()[0] != '.' && !e.IsDir() {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no files: name a libsvm file or a directory of them", path)
	}
	return files, nil
}
