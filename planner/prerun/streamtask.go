package prerun

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/stream"
)

// DefaultPasses is the default number of passes that assign data beyond memory.
const DefaultPasses = stream.DefaultPasses

// A StreamTask is a partition of data beyond memory, as psidecar partition --stream makes it.
type StreamTask struct {
	Input  Input // a file, or a folder of shards
	Output Output
	K      int // machines
	// Memory is the bytes of tables and buffers.
	Memory int64
	// Passes is the number of passes that assign; one more counts.
	Passes int
	// Scratch is a folder for what exceeds Memory.
	Scratch string
}

func (t *StreamTask) options() stream.Options {
	return stream.Options{K: t.K, Memory: t.Memory, Passes: t.Passes, Scratch: t.Scratch}
}

// Validate returns an error if the numbers do not allow a partition.
func (t *StreamTask) Validate() error { o := t.options(); return o.Validate() }

// Run partitions the data and writes the outputs. While it runs the garbage collector of the whole
// process aims at Memory plus what reading takes.
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
	// Memory is a promise to the user about the process, not only about the tables.
	defer boundGarbage(t.Memory + readingRoom)()
	r, err := Stream(ctx, shards, t.options(), t.Output)
	if errors.Is(err, partition.ErrInfeasible) { // others name the file
		return nil, fmt.Errorf("%s: %w", t.Input.Path, err)
	}
	return r, err
}

// readingRoom is what reading takes in addition to the tables, in bytes, on two cores.
const readingRoom = 192 << 20

// boundGarbage sets the memory limit of the garbage collector to limit, in bytes, unless a lower
// one is set. By default the heap grows to twice what is in use: a process whose tables take 4 GiB
// would grow to 8. restore sets the former limit.
func boundGarbage(limit int64) (restore func()) {
	before := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(limit, before))
	return func() { debug.SetMemoryLimit(before) }
}
