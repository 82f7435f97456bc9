// Package pipeline is the partition of package blocks as a pipeline on Apache
// Beam: its steps as functions on keyed bytes, and the graph of them. What a
// step computes is in package blocks; here is who is told what.
//
// A key is a route, which says where an element goes, and below it the number
// of a block, bucket or part. All functions that hold much take turns in a
// process, so that one process has one block or bucket in memory at a time.
package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition/blocks"
)

// A Config is what is asked for. It travels to the workers in their functions.
type Config struct {
	K       int    // machines
	Seed    uint64 // of all random choices
	Passes  int    // after the first
	Memory  int64  // bytes that a worker may take
	Out     string // folder, on any file system that Beam knows
	KeyMap  string // identity or spread, see [dataset.ParseKeyMap]
	Servers []int  // the PS-lite rank of each machine's server; nil: 0..K-1
	// Lanes is the number of workers that the graph itself divides the work
	// among. It is 1 but for an engine that does not, see [Build]. The outcome
	// does not depend on it.
	Lanes int
}

// Validate reports what is wrong with the configuration, before any work.
func (c *Config) Validate() error {
	switch {
	case c.K < 1 || c.K > math.MaxUint16:
		return fmt.Errorf("%d machines: want 1 to %d", c.K, math.MaxUint16)
	case c.Passes < 0 || c.Passes > 100:
		return fmt.Errorf("%d passes: want 0 to 100", c.Passes)
	case c.Memory < blocks.LeastMemory:
		return fmt.Errorf("%d bytes of memory: a worker needs %d", c.Memory, blocks.LeastMemory)
	case c.Out == "":
		return errors.New("no folder for the outcome")
	case c.KeyMap != "identity" && c.KeyMap != "spread":
		return fmt.Errorf("key map %q: want identity or spread", c.KeyMap)
	case c.Lanes < 1 || c.Lanes > maxLanes:
		return fmt.Errorf("%d workers: want 1 to %d", c.Lanes, maxLanes)
	}
	if ranks := slices.Sorted(slices.Values(c.Servers)); len(ranks) > 0 && (len(ranks) != c.K || ranks[0] != 0 || ranks[c.K-1] != c.K-1 || len(slices.Compact(ranks)) != c.K) {
		return fmt.Errorf("server ranks %v: want each of 0 to %d once", c.Servers, c.K-1)
	}
	return nil
}

func (c *Config) keyMap() (dataset.KeyMap, error) { return dataset.ParseKeyMap(c.KeyMap) }

// maxLanes keeps routes within what a graph can have of outputs.
const maxLanes = 64

// below is where a key's route begins.
const below = 40

// key returns the key of a block, bucket or part that goes to a lane of a class.
// What is numbered together is spread over the lanes.
func (c *Config) key(class int, number int64) int64 {
	return int64(class*c.Lanes+int(number%int64(c.Lanes)))<<below | number
}

// blockKey is the key of a block. All blocks of a color are even or odd, so that
// their halves are spread.
func (c *Config) blockKey(class, block int) int64 {
	lane := (block / blocks.Colors) % c.Lanes
	return int64(class*c.Lanes+lane)<<below | int64(block)
}

func number(key int64) int64 { return key & (1<<below - 1) }

// A Meta is what the first reading finds, and what follows from it.
type Meta struct {
	blocks.Layout
	Buckets int
	Edges   int64
	First   []int64  // number of each shard's first sample, and the number of all
	Splits  []uint64 // features up to each go to a part of the outcome of its own
}

func (m *Meta) encode() (string, error) {
	text, err := json.Marshal(m)
	return string(text), err
}

// A metaCache keeps what was decoded last.
type metaCache struct {
	text string
	meta *Meta
}

func (c *metaCache) get(text string) (*Meta, error) {
	if c.meta == nil || c.text != text {
		m := new(Meta)
		if err := json.Unmarshal([]byte(text), m); err != nil {
			return nil, fmt.Errorf("%w: what the first reading found: %w", blocks.ErrDamaged, err)
		}
		c.text, c.meta = text, m
	}
	return c.meta, nil
}

// turn is held by the one function of a process that has much in memory.
var turn sync.Mutex

// takeTurn waits for the turn, which the caller gives back, and bounds the heap.
func (c *Config) takeTurn() (giveBack func()) {
	turn.Lock()
	debug.SetMemoryLimit(c.Memory - codeBytes)
	return turn.Unlock
}

// codeBytes is what a process has in memory besides what the runtime counts.
const codeBytes = 64 << 20
