// Package counts keeps how often each worker of a job used each key, and the bytes that it
// moved for it, in bounded memory.
//
// Its input are the key lists of requests, as [Batch]es. Its output are the sums per worker and
// block of keys (the heatmap), the hottest keys and the skew of the accesses. The agent calls
// it for every message; its pages query it.
//
// While the keys fit in the memory that [Options] allow, every number is exact. Beyond that the
// coldest blocks are folded: their totals per worker stay exact, their hottest keys stay exact
// one by one, and the rest is in a count-min sketch whose error [Table.Bound] states. A key of
// a folded block that turns out hot is promoted: exact from then on, while its earlier count is
// the sketch's estimate, marked as such.
//
// # Table
//
// A [Table] is a sorted array of leaves of up to 512 keys (leaf.go). A leaf has a row for each
// worker, a row a plane for each quantity (plane.go), in the narrowest cells that hold its
// amounts. Adding goes through two stages that put off work: repeated runs of dense keys are
// only summed up (run.go), and lists of sparse keys gather in a hash table, the front
// (front.go), until they are counted in the leaves in one pass. Every query counts what was put
// off first, so callers never see the stages. Folding is in fold.go, the sketch in sketch.go.
//
// # Locality
//
// A [Locality] keeps what one job does over time: bytes between each pair of nodes, the keys
// that each worker used, latency of requests, steps of each worker, and stragglers.
//
// It takes the requests and answers of a job in the order in which they were seen, with workers
// and servers as small numbers, and returns sums since the start and over any stretch of the
// recent past. It uses neither sockets nor clocks: time is what the messages carry.
package counts

import (
	"slices"
	"sort"
	"sync"
)

// Options bound a table.
type Options struct {
	// MemoryBytes bounds the keys and counters, without the sketch.
	MemoryBytes int
	// SketchBytes is the size of the sketch, which is allocated when the first block is folded.
	SketchBytes int
	// Timed, if not nil, must call its argument at once. It wraps work that was put off, so
	// that the caller can measure it apart from the call that happened to trigger it.
	Timed func(work func())
}

// DefaultOptions keep a table, its sketch and the garbage collector's overhead for them under
// 512 MiB.
var DefaultOptions = Options{MemoryBytes: 160 << 20, SketchBytes: 64 << 20}

// MemoryLimit is the soft limit for the Go runtime (debug.SetMemoryLimit), in bytes, with which
// a process with one table of default options stays under 512 MiB.
const MemoryLimit = 420 << 20

// A Batch is one use of a list of keys by one worker. Its slices belong to the caller and are
// copied where they are kept.
type Batch struct {
	Worker int      // index, from 0; memory grows with the highest one seen
	Keys   []uint64 // in any order; ascending ones are faster
	// Ascending says that the keys are known to ascend strictly, which saves checking it.
	Ascending bool
	// Run is the keys if its N is not 0; Keys and Lens are then nil.
	Run Run
	// Each is added for every key.
	Each [Planes]uint64
	// Lens, if not nil, has an entry for each key: Lens[i] x LenUnit is added to LenPlane.
	// Negative entries count as 0.
	Lens     []int32
	LenUnit  uint64
	LenPlane Plane

	sums [][Planes]uint32 // if not nil, the amounts of each key, instead of Each and Lens
}

// lenBytes returns what key number i adds to LenPlane.
func (b *Batch) lenBytes(i int) uint64 {
	if b.Lens[i] <= 0 {
		return 0
	}
	return uint64(b.Lens[i]) * b.LenUnit
}

// A Table counts for one job. Its methods may be called from any goroutine.
//
// Invariants: firsts ascend from 0, so each key belongs to exactly one leaf; used is the sum of
// the leaves' bytes; while waiting is set, the leaves lack what repeats and front hold, which
// lock counts before anything is read.
type Table struct {
	opts Options

	mu      sync.Mutex // guards the fields below; taken after Locality.mu
	leaves  []*leaf
	firsts  []uint64 // leaves[i].first
	used    int      // bytes of the leaves
	workers int
	total   [Planes]uint64
	sketch  *sketch // nil until a leaf was folded
	merges  int     // number of rounds in which folded leaves were merged

	repeats map[repeat]*Sums // runs that were counted before, with what has come since
	front   *front           // nil until the first keys that are no run
	waiting bool             // repeats or front hold something that is not counted
	timed   bool             // inside Options.Timed, which must not nest
	spelled []uint64         // scratch of countRun

	found, missing []int32  // scratch of addToLeaf and what it calls
	fresh          []uint64 // scratch of mergeKeys
	from, places   []int32
}

// New returns an empty table.
func New(opts Options) *Table {
	t := &Table{opts: opts, repeats: map[repeat]*Sums{}}
	t.leaves, t.firsts = []*leaf{{}}, []uint64{0}
	t.used = t.leaves[0].bytes()
	return t
}

// Add counts the batch, or puts it off. If the table exceeds its memory afterwards, it folds
// cold leaves, which takes time in proportion to all keys.
func (t *Table) Add(b Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Also for a batch that is put off: queries size their results by it.
	t.workers = max(t.workers, b.Worker+1)
	if b.Run.N > 0 {
		t.addRun(&b)
	}
	if len(b.Keys) > 0 {
		t.gather(&b)
	}
	// Checked once for each batch, so the table may exceed its memory by what one batch adds.
	if t.used > t.room() {
		t.countWaiting()
		t.shrink()
	}
}

// room returns the bytes that the leaves may take.
func (t *Table) room() int { return t.opts.MemoryBytes - t.front.bytes() }

// spread counts the batch in the leaves, one strictly ascending stretch of its keys after the
// other. An unsorted list works, at the cost of a search for each key.
func (t *Table) spread(b *Batch) {
	for from := 0; from < len(b.Keys); {
		to := b.ascendingRun(from)
		t.addAscending(b, from, to)
		from = to
	}
}

// SetMemory changes Options.MemoryBytes. It takes effect with the next Add.
func (t *Table) SetMemory(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opts.MemoryBytes = bytes
}

// ascendingRun returns the end of the strictly ascending stretch of keys that starts at from. A
// key that repeats starts another stretch, so it is counted again.
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

// addAscending counts keys[from:to] of the batch, which ascend strictly. It walks the leaves
// and the keys together; from one leaf to the next that has keys it searches forward only.
func (t *Table) addAscending(b *Batch, from, to int) {
	at := t.leafOf(b.Keys[from], 0)
	for from < to {
		end := to
		if at+1 < len(t.firsts) {
			end = from + countBelow(b.Keys[from:to], t.firsts[at+1])
		}
		grown := t.addToLeaf(at, b, from, end) // the leaf may have been cut into several
		from, at = end, at+grown+1
		if from < to && at+1 < len(t.firsts) && t.firsts[at+1] <= b.Keys[from] {
			at = t.leafOf(b.Keys[from], at)
		}
	}
}

// leafOf returns the number of the leaf that covers k and is not below leaf low. It doubles its
// step from low on, so a near leaf is found in few comparisons.
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

// countBelow returns how many of the ascending keys are below limit. It doubles its step from
// the start, because most leaves get few keys of a sparse batch.
func countBelow(keys []uint64, limit uint64) int {
	high := 1
	for high <= len(keys) && keys[high-1] < limit {
		high *= 2
	}
	low := high / 2
	high = min(high, len(keys))
	return low + sort.Search(high-low, func(i int) bool { return keys[low+i] >= limit })
}

// addToLeaf counts keys[from:to] in leaf number at and returns by how many leaves the table has
// grown. Totals are added first, in any case: they are exact even where a folded leaf does not
// know a key.
func (t *Table) addToLeaf(at int, b *Batch, from, to int) int {
	l := t.leaves[at]
	keys := b.Keys[from:to]
	r, grown := l.row(b.Worker)
	t.used += grown
	t.addTotals(r, b, from, to)
	// The same keys as last time, as in dense training: no key is looked up.
	if l.n > 0 && l.isWhole(keys) {
		t.used += r.addCounts(l, nil, b, from, nil)
		return 0
	}
	// Scratch of the table, so that counting allocates nothing as long as no key is new.
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

// addFound adds the batch's amounts to the keys at the places t.found. They are those of the
// batch's keys [from, from+n) that are not in t.missing; where amounts differ by key, the
// numbers of the found ones are needed too.
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

// addTotals adds the amounts of keys[from:to] to the totals of a row and of the table.
func (t *Table) addTotals(r *row, b *Batch, from, to int) {
	sums := b.total(from, to)
	(*Sums)(&r.total).Add(sums)
	(*Sums)(&t.total).Add(sums)
}

// total returns the sum of the amounts of keys[from:to].
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

// accesses returns the pulls and pushes of key number i.
func (b *Batch) accesses(i int) uint64 {
	if b.sums != nil {
		return uint64(b.sums[i][Pulls]) + uint64(b.sums[i][Pushes])
	}
	return b.Each[Pulls] + b.Each[Pushes]
}
