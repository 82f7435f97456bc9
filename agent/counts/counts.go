// Package counts keeps how often each worker of a job used each key, and the
// bytes that it moved for it, in bounded memory.
//
// In come the sorted key lists of requests, as [Batch]es. Out go the sums per
// worker and block of keys (the heatmap), the hottest keys and the skew of the
// accesses. The agent calls it for every message; its pages ask it.
//
// While the keys fit in the memory that [Options] allow, every number is exact.
// Beyond that the coldest blocks are folded: their totals per worker stay exact,
// their hottest keys stay exact one by one, and the rest is in a count-min sketch
// whose error [Table.Bound] states. A key of a folded block that turns out hot is
// promoted: exact from then on, and its earlier count is the sketch's estimate,
// marked as such.
//
// # Locality
//
// A [Locality] keeps what one job does over time: bytes between each pair of nodes,
// the keys that each worker used, latency of requests, steps of each worker, and
// stragglers.
//
// It takes the requests and answers of a job in the order in which they were seen,
// with workers and servers as small numbers, and returns sums since the start and over
// any stretch of the recent past. It uses neither sockets nor clocks: time is what the
// messages carry.
package counts

import (
	"slices"
	"sort"
	"sync"
)

// Options bound a table.
type Options struct {
	// MemoryBytes is what keys and counters may take, without the sketch.
	MemoryBytes int
	// SketchBytes is what the sketch takes once a block was folded.
	SketchBytes int
	// Timed, where not nil, is to call what it is given at once: work that was put off,
	// whose time may not fall to the call that brought the keys.
	Timed func(work func())
}

// DefaultOptions keep a table, its sketch and what the garbage collector needs
// above them under 512 MiB.
var DefaultOptions = Options{MemoryBytes: 160 << 20, SketchBytes: 64 << 20}

// MemoryLimit is what the Go runtime of a process with a table of default
// options should aim for (debug.SetMemoryLimit) to stay under 512 MiB.
const MemoryLimit = 420 << 20

// A Batch is one use of a list of keys by one worker.
type Batch struct {
	Worker int      // index, from 0; memory grows with the highest one seen
	Keys   []uint64 // ascending where it should be fast; not kept
	// Ascending says that the keys strictly ascend, where the caller knows:
	// then nobody looks again.
	Ascending bool
	// Run, where its N is not 0, is the keys, and Keys and Lens are nil.
	Run Run
	// Each is added to every key.
	Each [Planes]uint64
	// Lens, where not nil, has an entry for each key: Lens[i] x LenUnit is
	// added to LenPlane. Negative entries count as 0.
	Lens     []int32
	LenUnit  uint64
	LenPlane Plane

	sums [][Planes]uint32 // where not nil, what each key gets, instead of Each and Lens
}

func (b *Batch) lenBytes(i int) uint64 {
	if b.Lens[i] <= 0 {
		return 0
	}
	return uint64(b.Lens[i]) * b.LenUnit
}

// A Table counts for one job. Its methods may be called from any goroutine.
//
// Invariants: firsts ascend from 0, so that each key is in exactly one leaf; used is
// the sum of the leaves' bytes; while waiting, leaves lack what repeats and front have
// noted, which is counted before anything is read.
type Table struct {
	opts Options

	mu      sync.Mutex // guards the rest
	leaves  []*leaf
	firsts  []uint64 // leaves[i].first
	used    int      // bytes of the leaves
	workers int
	total   [Planes]uint64
	sketch  *sketch // nil until a leaf was folded
	merges  int     // how often folded leaves were merged

	repeats map[repeat]*Sums // earlier runs that are not counted yet
	front   *front           // nil until there were keys that are no run
	waiting bool             // some of what repeats or front has noted is not counted
	timed   bool             // Options.Timed has called
	spelled []uint64         // scratch of countRun

	found, missing []int32  // scratch of Add
	fresh          []uint64 // scratch of insert
	from, places   []int32
}

// New returns an empty table.
func New(opts Options) *Table {
	t := &Table{opts: opts, repeats: map[repeat]*Sums{}}
	t.leaves, t.firsts = []*leaf{{}}, []uint64{0}
	t.used = t.leaves[0].bytes()
	return t
}

// Add counts the batch.
func (t *Table) Add(b Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers = max(t.workers, b.Worker+1)
	if b.Run.N > 0 {
		t.addRun(&b)
	}
	if len(b.Keys) > 0 {
		t.gather(&b)
	}
	if t.used > t.room() {
		t.countWaiting()
		t.shrink()
	}
}

// room is what the leaves may take.
func (t *Table) room() int { return t.opts.MemoryBytes - t.front.bytes() }

// spread counts the batch in the leaves.
func (t *Table) spread(b *Batch) {
	for from := 0; from < len(b.Keys); {
		to := b.ascendingRun(from)
		t.addAscending(b, from, to)
		from = to
	}
}

// SetMemory changes what keys and counters may take, from the next Add on.
func (t *Table) SetMemory(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opts.MemoryBytes = bytes
}

// ascendingRun returns the end of the strictly ascending run of keys that
// starts at from.
func (b *Batch) ascendingRun(from int) int {
	keys := b.Keys
	if b.Ascending {
		return len(keys)
	}
	i := from + 1
	for i < len(keys) && keys[i] > keys[i-1] {
		i++
	}
	return i
}

// addAscending counts keys[from:to] of the batch, which ascend.
func (t *Table) addAscending(b *Batch, from, to int) {
	at := t.leafOf(b.Keys[from], 0)
	for from < to {
		end := to
		if at+1 < len(t.firsts) {
			end = from + countBelow(b.Keys[from:to], t.firsts[at+1])
		}
		grown := t.addToLeaf(at, b, from, end)
		from, at = end, at+grown+1
		if from < to && at+1 < len(t.firsts) && t.firsts[at+1] <= b.Keys[from] {
			at = t.leafOf(b.Keys[from], at)
		}
	}
}

// leafOf returns the number of the leaf that covers k, which is not below
// that of number low.
func (t *Table) leafOf(k uint64, low int) int {
	step := 1
	for low+step < len(t.firsts) && t.firsts[low+step] <= k {
		low += step
		step *= 2
	}
	high := min(low+step, len(t.firsts))
	at, ok := slices.BinarySearch(t.firsts[low:high], k)
	if !ok {
		at--
	}
	return low + at
}

// countBelow returns how many of the ascending keys are below limit. It looks
// near the start first: most leaves get few keys of a sparse batch.
func countBelow(keys []uint64, limit uint64) int {
	high := 1
	for high <= len(keys) && keys[high-1] < limit {
		high *= 2
	}
	low := high / 2
	high = min(high, len(keys))
	return low + sort.Search(high-low, func(i int) bool { return keys[low+i] >= limit })
}

// addToLeaf counts keys[from:to] in leaf number at and returns how many leaves
// it was cut into beyond one.
func (t *Table) addToLeaf(at int, b *Batch, from, to int) int {
	l := t.leaves[at]
	keys := b.Keys[from:to]
	r, grown := l.row(b.Worker)
	t.used += grown
	t.addTotals(r, b, from, to)
	if l.n > 0 && l.isWhole(keys) {
		t.used += r.addCounts(l, nil, b, from, nil)
		return 0
	}
	t.found, t.missing = l.find(keys, t.found[:0], t.missing[:0])
	if len(t.missing) > 0 && l.folded == nil {
		return t.insert(at, b, from, to)
	}
	t.addFound(l, r, b, from, len(keys))
	if len(t.missing) > 0 {
		t.addFolded(l, b, from)
	}
	return 0
}

// addFound adds the batch to the keys in t.found, those of its n keys from
// number from on that are not in t.missing.
func (t *Table) addFound(l *leaf, r *row, b *Batch, from, n int) {
	if len(t.found) == 0 {
		return
	}
	var numbers []int32
	if (b.Lens != nil || b.sums != nil) && len(t.missing) > 0 {
		numbers = make([]int32, 0, len(t.found))
		skip := t.missing
		for i := range int32(n) {
			if len(skip) > 0 && skip[0] == i {
				skip = skip[1:]
				continue
			}
			numbers = append(numbers, i)
		}
	}
	t.used += r.addCounts(l, t.found, b, from, numbers)
}

func (t *Table) addTotals(r *row, b *Batch, from, to int) {
	sums := b.total(from, to)
	(*Sums)(&r.total).Add(sums)
	(*Sums)(&t.total).Add(sums)
}

// total returns what keys[from:to] of the batch get together.
func (b *Batch) total(from, to int) (sums Sums) {
	if b.sums != nil {
		for _, each := range b.sums[from:to] {
			for p, n := range each {
				sums[p] += uint64(n)
			}
		}
		return sums
	}
	for p, amount := range b.Each {
		sums[p] = amount * uint64(to-from)
	}
	for i := from; b.Lens != nil && i < to; i++ {
		sums[b.LenPlane] += b.lenBytes(i)
	}
	return sums
}

// accesses returns the uses of key number i of the batch.
func (b *Batch) accesses(i int) uint64 {
	if b.sums != nil {
		return uint64(b.sums[i][Pulls]) + uint64(b.sums[i][Pushes])
	}
	return b.Each[Pulls] + b.Each[Pushes]
}
