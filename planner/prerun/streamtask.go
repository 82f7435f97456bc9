package prerun

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/stream"
)

// DefaultPasses is how often data beyond memory is read to assign it, by default.
const DefaultPasses = stream.DefaultPasses

// A StreamTask is a partition of data beyond memory, as psidecar partition --stream
// makes it.
type StreamTask struct {
	Input   Input // a file, or a folder of shards
	Output  Output
	K       int    // machines
	Memory  int64  // bytes of tables and buffers
	Passes  int    // over the data that assign, after one that counts
	Scratch string // folder for what exceeds Memory
}

func (t *StreamTask) options() stream.Options {
	return stream.Options{K: t.K, Memory: t.Memory, Passes: t.Passes, Scratch: t.Scratch}
}

// Validate returns an error where the numbers do not allow a partition.
func (t *StreamTask) Validate() error { o := t.options(); return o.Validate() }

// Run divides the data and writes the outputs. While it runs, the garbage collector
// of the process aims to stay within Memory and what reading takes.
func (t *StreamTask) Run(ctx context.Context) (*Report, error) {
	paths, err := Shards(t.Input.Path)
	if err != nil {
		return nil, err
	}
	shards := make([]Input, len(paths))
	for i, path := range paths {
		shards[i] = t.Input
		shards[i].Path = path
	}
	defer boundGarbage(t.Memory + readingRoom)()
	r, err := Stream(ctx, shards, t.options(), t.Output)
	if errors.Is(err, partition.ErrInfeasible) { // others name the file
		return nil, fmt.Errorf("%s: %w", t.Input.Path, err)
	}
	return r, err
}

// readingRoom is what reading takes besides the tables, in bytes, on two cores.
const readingRoom = 192 << 20

// boundGarbage has the garbage collector aim to stay below limit, in bytes, where no
// lower one holds already: by default garbage grows to as much as is in use, and a process
// whose tables take 4 GiB to 8. The limit of before holds again once restore is called.
func boundGarbage(limit int64) (restore func()) {
	before := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(limit, before))
	return func() { debug.SetMemoryLimit(before) }
}
