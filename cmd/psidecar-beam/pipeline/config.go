// Package pipeline is the partition of package blocks as a pipeline on Apache Beam: its steps
// as functions on keyed bytes, and the graph of them. What a step computes is in package
// blocks; here is who is told what.
//
//	shards ─ count ─ plan ──► Meta, a side input of all the rest
//	shards ─ load ─ form ──► blocks ◄─ waves, passes ─► buckets
//	blocks, buckets ─ owners, samples ─ write ─ finish ──► files
//
// A key is a route, which says where an element goes, and below it the number of a block,
// bucket or part. A route is a class, that is a wave or color, and a lane, that is a worker;
// see [Config.Lanes].
//
// An engine may run a function again after a failure, on another worker, and may run several
// functions of a process at once. So functions are deterministic and keep no state but a cache,
// files are written under the names of their parts and are overwritten when written again, and
// all functions that hold much take turns in a process ([Config.Memory]), which has one block
// or bucket in memory at a time.
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

// A Config is what is asked for. It travels to the workers inside their functions, as JSON, so
// all its fields are exported.
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

// Validate returns what is wrong with the configuration. It is called before any work; the
// functions on the workers rely on it.
func (c *Config) Validate() error {
	switch {
	case c.K < 1 || c.K > math.MaxUint16:
		return fmt.Errorf("%d machines: want 1 to %d", c.K, math.MaxUint16)
	case c.Passes < 0 || c.Passes > 100:
		return fmt.Errorf("%d passes: want 0 to 100", c.Passes)
	case c.Memory < blocks.LeastMemory:
		return fmt.Errorf("%d bytes of memory: a worker needs %d", c.Memory, blocks.LeastMemory)
	case c.Out == "":
		return errors.New("no output directory")
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

// keyMap returns the function from feature ids to keys on the wire.
func (c *Config) keyMap() (dataset.KeyMap, error) { return dataset.ParseKeyMap(c.KeyMap) }

// maxLanes bounds the lanes: a partition by route has an output for each lane of each class,
// and a graph can have only so many.
const maxLanes = 64

// below is the bit of a key at which its route begins. Numbers of blocks, buckets and parts,
// with their kinds, stay below it.
const below = 40

// key returns the key of a block, bucket or part that goes to a lane of a class. Consecutive
// numbers go to different lanes in turn.
func (c *Config) key(class int, number int64) int64 {
	return int64(class*c.Lanes+int(number%int64(c.Lanes)))<<below | number
}

// blockKey returns the key of a block. In a step all blocks are of one color, which are the
// even or the odd ones; halving the number before it is divided among the lanes spreads them
// all the same.
func (c *Config) blockKey(class, block int) int64 {
	lane := (block / blocks.Colors) % c.Lanes
	return int64(class*c.Lanes+lane)<<below | int64(block)
}

// number returns the key without its route.
func number(key int64) int64 { return key & (1<<below - 1) }

// A Meta is what the first reading of the data finds, and what follows from it. It is a side
// input of all later functions, as JSON.
type Meta struct {
	blocks.Layout
	Buckets int
	Edges   int64    // features of all samples together
	First   []int64  // number of each shard's first sample, and the number of all
	Splits  []uint64 // features up to each go to a part of the outcome of its own
}

// encode returns the Meta as JSON.
func (m *Meta) encode() (string, error) {
	text, err := json.Marshal(m)
	return string(text), err
}

// A metaCache keeps what was decoded last. A function gets the same Meta with every element;
// the shards' numbers in it are many.
type metaCache struct {
	text string
	meta *Meta
}

// get decodes a Meta. The result is shared and must not be changed.
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

// turn is held by the one function of a process that has much in memory. Lanes of Prism are
// processes, but other engines run several functions of a worker at once.
var turn sync.Mutex

// takeTurn waits for the turn and sets the limit of the heap. The caller calls the function
// that it returns when it has let go of what it holds. It must not be taken twice by functions
// that call each other, as an engine may fuse them.
func (c *Config) takeTurn() (giveBack func()) {
	turn.Lock()
	debug.SetMemoryLimit(c.Memory - codeBytes)
	return turn.Unlock
}

// codeBytes is what a process has in memory beside what the Go runtime counts: the program's
// code and what the engine maps, rounded up.
const codeBytes = 64 << 20
