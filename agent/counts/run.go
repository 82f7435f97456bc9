package counts

import (
	"math"
	"slices"
)

// A Run is an ascending arithmetic progression of keys: First, First+Step and so on, N of them.
// Jobs with dense parameters use little else, and always the same ones. A run costs the same
// however long it is.
type Run struct {
	First, Step uint64
	N           int
}

// Ascends reports whether the keys ascend strictly, as a [Batch] requires: Step is not 0, and
// no key overflows 64 bits.
func (r Run) Ascends() bool {
	return r.N > 0 && (r.N == 1 || r.Step > 0 && uint64(r.N-1) <= (math.MaxUint64-r.First)/r.Step)
}

// Last returns the last key.
func (r Run) Last() uint64 { return r.First + uint64(r.N-1)*r.Step }

// Append appends the keys one by one and returns the extended slice.
func (r Run) Append(keys []uint64) []uint64 {
	for k, i := r.First, 0; i < r.N; i++ {
		keys = append(keys, k)
		k += r.Step
	}
	return keys
}

// below returns how many of the keys are below limit.
func (r Run) below(limit uint64) int {
	switch {
	case limit <= r.First:
		return 0
	case r.N == 1:
		return 1
	}
	return int(min((limit-r.First-1)/r.Step+1, uint64(r.N)))
}

// after returns the run without its first n keys.
func (r Run) after(n int) Run {
	return Run{r.First + uint64(n)*r.Step, r.Step, r.N - n}
}

// repeat identifies a run that a worker has used before.
type repeat struct {
	worker int
	run    Run
}

// Bounds of a table's memory for runs: runs that are remembered, keys of one run that are added
// before the memory is checked again, and keys that are written out one by one.
const (
	maxRepeats = 4096
	inserted   = 1 << 17
	spelled    = 8192
)

// addRun counts a batch that is a run. If the worker has used the same run before, its amounts
// are only summed up, which is constant time; the keys are counted before the next query.
func (t *Table) addRun(b *Batch) {
	key := repeat{b.Worker, b.Run}
	if sums := t.repeats[key]; sums != nil {
		sums.Add(b.Each)
		t.waiting = true
		return
	}
	// A job whose runs never repeat would otherwise fill the map with runs that are of no use.
	if len(t.repeats) >= maxRepeats {
		t.countRepeats()
		clear(t.repeats)
	}
	t.repeats[key] = new(Sums)
	t.countRun(b)
}

// lock locks the table and counts everything that was put off. Every query begins with it.
func (t *Table) lock() {
	t.mu.Lock()
	t.countWaiting()
}

// countWaiting counts everything that was put off. The caller holds t.mu.
func (t *Table) countWaiting() {
	if !t.waiting {
		return
	}
	t.later(func() {
		t.countRepeats()
		if t.front != nil {
			t.countLists()
			t.drain()
		}
	})
	t.waiting = false
}

// later does work that was put off, within Options.Timed.
func (t *Table) later(work func()) {
	if t.timed || t.opts.Timed == nil {
		work()
		return
	}
	t.timed = true
	t.opts.Timed(work)
	t.timed = false
}

// countRepeats counts the runs that were only summed up. The runs stay remembered.
func (t *Table) countRepeats() {
	for key, sums := range t.repeats {
		if *sums != (Sums{}) {
			t.countRun(&Batch{Worker: key.worker, Run: key.run, Each: *sums})
			*sums = Sums{}
		}
	}
}

// countRun counts a run's keys. Three cases, from cheap to expensive: the run covers a leaf
// exactly, and the leaf is counted as a whole; the keys lie behind all known ones and get
// leaves of their own; otherwise they are counted one by one, some thousand at a time.
func (t *Table) countRun(b *Batch) {
	run, at := b.Run, t.leafOf(b.Run.First, 0)
	for run.N > 0 {
		n := run.N
		if at+1 < len(t.firsts) {
			n = run.below(t.firsts[at+1])
		}
		switch l := t.leaves[at]; {
		case l.is(run, n):
			t.countWhole(l, b)
		case l.folded == nil && (l.n == 0 || l.key(l.n-1) < run.First):
			n = min(n, inserted)
			t.appendRun(at, b, Run{run.First, run.Step, n})
		default:
			n = min(n, spelled)
			t.spelled = Run{run.First, run.Step, n}.Append(t.spelled[:0])
			t.addAscending(&Batch{Worker: b.Worker, Keys: t.spelled, Each: b.Each}, 0, n)
		}
		// Inside the loop: a single run may have millions of new keys.
		if t.used > t.room() {
			t.shrink()
			// Leaves were merged, so the number is no longer valid.
			at = 0
		}
		if run = run.after(n); run.N > 0 {
			at = t.leafOf(run.First, at)
		}
	}
}

// countWhole counts the batch's amounts for all keys of a leaf.
func (t *Table) countWhole(l *leaf, b *Batch) {
	r, grown := l.row(b.Worker)
	t.addTotals(r, b, 0, l.n)
	t.used += grown + r.addCounts(l, nil, b, 0, nil)
}

// appendRun counts the batch for the keys of run, which belong to leaf number at and lie behind
// all keys that it knows. They get leaves of their own, so that later uses of the run match
// whole leaves.
func (t *Table) appendRun(at int, b *Batch, run Run) {
	var behind []*leaf
	var firsts []uint64
	for run.N > 0 {
		l := &leaf{first: run.First}
		if t.leaves[at].n == 0 && behind == nil {
			l = t.leaves[at] // the first leaf of all, as long as it is empty
			t.used -= l.bytes()
		}
		l.n, l.base, l.step = min(run.N, leafKeys), run.First, run.Step
		if l.n == 1 {
			l.step = 0
		}
		t.used += l.bytes()
		t.countWhole(l, b)
		if l != t.leaves[at] {
			behind, firsts = append(behind, l), append(firsts, l.first)
		}
		run = run.after(l.n)
	}
	t.leaves = slices.Insert(t.leaves, at+1, behind...)
	t.firsts = slices.Insert(t.firsts, at+1, firsts...)
}

// is reports whether the leaf's keys are exactly the first n of the run.
func (l *leaf) is(r Run, n int) bool {
	return l.keys == nil && l.n == n && l.base == r.First && (l.step == r.Step || n == 1)
}

// addRun adds the batch's run to a row of a grid whose blocks begin at firsts.
func (b *Batch) addRun(firsts []uint64, row []Sums) {
	at, run := 0, b.Run
	for run.N > 0 {
		at += blockOf(firsts[at:], run.First)
		n := run.N
		if at+1 < len(firsts) {
			n = run.below(firsts[at+1])
		}
		for p, amount := range b.Each {
			row[at][p] += amount * uint64(n)
		}
		run = run.after(n)
	}
}
