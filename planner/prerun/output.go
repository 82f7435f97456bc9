package prerun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// ShardName returns the file name of machine i's part of the data. The number is padded, so that
// names sort by machine.
func ShardName(i int) string { return fmt.Sprintf("shard-%05d.libsvm", i) }

// An Output is what a job and the proxies take from a partition: a directory with shards,
// assignment.txt and placement.json.
type Output struct {
	Dir       string
	K         int
	Algorithm string
	KeyMap    dataset.KeyMap
	// Servers are the PS-lite ranks of the machines' servers; nil means 0..K-1.
	Servers []int
}

// Write writes a shard of the data for each machine, assignment.txt in the format of
// [partition.WriteAssignment], and placement.json. It reads the input again for the shards.
// placement.json comes last: a directory that has one is complete.
func (out Output) Write(ctx context.Context, in Input, g *graph.Graph, a *partition.Assignment) error {
	// This fails if a feature has no key, which must be known before anything is written.
	p, err := plan.NewPlacement(a.Params, g.Feature, out.K, out.KeyMap.Key)
	if err != nil {
		return err
	}
	p.Algorithm = out.Algorithm
	if out.Servers != nil {
		p.Server = out.Servers
	}
	if err := out.Prepare(); err != nil {
		return err
	}
	if err := out.removePlacement(); err != nil {
		return err
	}
	if err := out.shards(ctx, in, a.Samples); err != nil {
		return err
	}
	if err := out.assignment(a); err != nil {
		return err
	}
	return plan.WritePlacementFile(out.placementPath(), p)
}

func (out Output) placementPath() string { return filepath.Join(out.Dir, "placement.json") }

// removePlacement removes the placement of an earlier partition, before its shards are overwritten.
// Beside shards of another partition it would have proxies place keys for data that is not there.
func (out Output) removePlacement() error {
	if err := os.Remove(out.placementPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the placement of an earlier partition: %w", err)
	}
	return nil
}

// Prepare creates the directory. It refuses one that cannot be written to, or that has shards of
// more machines, which somebody would take for a part of this partition. Write checks the same;
// callers check before long work. Files of an earlier partition among as many machines are
// overwritten.
func (out Output) Prepare() error {
	if err := os.MkdirAll(out.Dir, 0o755); err != nil {
		return fmt.Errorf("making the output directory: %w", err)
	}
	found, err := os.ReadDir(out.Dir)
	if err != nil {
		return fmt.Errorf("looking into the output directory: %w", err)
	}
	var ours []string
	for i := range out.K {
		ours = append(ours, ShardName(i))
	}
	for _, f := range found {
		if !strings.HasPrefix(f.Name(), "shard-") || !strings.HasSuffix(f.Name(), ".libsvm") {
			continue
		}
		// Shards of fewer machines are all overwritten.
		if _, known := slices.BinarySearch(ours, f.Name()); !known {
			return fmt.Errorf("%s belongs to a partition for a number of machines other than %d: remove the old shards or use another directory", filepath.Join(out.Dir, f.Name()), out.K)
		}
	}
	return TryFile(filepath.Join(out.Dir, assignmentName))
}

const assignmentName = "assignment.txt"

// TryFile returns why a file could not be written, nil if it could, and leaves everything as it is:
// an existing file keeps its content, and a new one is removed again. A pipe or device is not
// opened, since that could block or have effects.
func TryFile(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	f, openErr := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if openErr != nil {
		return openErr
	}
	openErr = f.Close()
	// The file was not there: opening it has created it.
	if errors.Is(err, os.ErrNotExist) {
		openErr = errors.Join(openErr, os.Remove(path))
	}
	return openErr
}

// assignment writes assignment.txt.
func (out Output) assignment(a *partition.Assignment) error {
	path := filepath.Join(out.Dir, assignmentName)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the assignment: %w", err)
	}
	err = partition.WriteAssignment(f, a)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("writing %s: %w", path, closeErr)
	}
	return err
}

// shards copies each row of the input, in order, to the file of its machine. All K files are open
// at once.
func (out Output) shards(ctx context.Context, in Input, machine []int32) (err error) {
	files := make([]*os.File, out.K)
	writers := make([]*dataset.Writer, out.K)
	defer func() {
		// The first error counts; a failed close may be the only sign of a full disk.
		for _, f := range files {
			if f != nil {
				if closeErr := f.Close(); err == nil && closeErr != nil {
					err = fmt.Errorf("writing a shard: %w", closeErr)
				}
			}
		}
	}()
	for i := range files {
		if files[i], err = os.Create(filepath.Join(out.Dir, ShardName(i))); err != nil {
			return fmt.Errorf("writing the shards: %w", err)
		}
		writers[i] = dataset.NewWriter(files[i])
	}
	next := 0
	err = in.readRows(ctx, func(rows *dataset.Rows, hashed [][]uint64) error {
		// The file may have grown since the graph was built. Without this check its rows would
		// index beyond the assignment.
		if next+rows.Len() > len(machine) {
			return errChanged
		}
		for r := range rows.Len() {
			w := writers[machine[next]]
			next++
			if err := writeRow(w, rows, r, hashed); err != nil {
				return fmt.Errorf("writing a shard: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if next != len(machine) {
		return errChanged
	}
	for _, w := range writers {
		if err := w.Flush(); err != nil {
			return fmt.Errorf("writing a shard: %w", err)
		}
	}
	return nil
}

// errChanged is returned if the data has another number of rows than when the graph was built.
var errChanged = errors.New("the data changed between the two readings of it: run again")

// writeRow writes row r: as it was in the file, or hashed with all values 1.
func writeRow(w *dataset.Writer, rows *dataset.Rows, r int, hashed [][]uint64) error {
	if hashed == nil {
		return w.Text(rows.Text(r))
	}
	ones := make([]float32, len(hashed[r]))
	for i := range ones {
		ones[i] = 1
	}
	return w.Row(rows.Label[r], hashed[r], ones)
}

// SetKeyMap sets which key the job uses on the wire for an id in the data: "identity", "spread" or
// "file:PATH", see [dataset.ParseKeyMap].
func (out *Output) SetKeyMap(text string) (err error) {
	out.KeyMap, err = dataset.ParseKeyMap(text)
	return err
}
