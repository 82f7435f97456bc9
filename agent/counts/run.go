package counts

import (
	"math"
	"slices"
)

// A Run is ascending keys at one distance from each other: First, First+Step
// and so on, N of them. Jobs with dense parameters use little else, always the
// same ones, so that a run costs the same however long it is.
type Run struct {
	First, Step uint64
	N           int
}

// Ascends reports whether the keys strictly ascend, which a [Batch] needs: the
// distance is not 0, and no key is beyond 2^64.
func (r Run) Ascends() bool {
	return r.N > 0 && (r.N == 1 || r.Step > 0 && uint64(r.N-1) <= (math.MaxUint64-r.First)/r.Step)
}

// Last is the run's last key.
func (r Run) Last() uint64 { return r.First + uint64(r.N-1)*r.Step }

// Append appends the keys one by one.
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

// A repeat is a run that a worker used before.
type repeat struct {
	worker int
	run    Run
}

// Bounds of what a table remembers of runs, and of the keys of one that it
// takes in, or spells out, at a time.
const (
	maxRepeats = 4096
	inserted   = 1 << 17
	spelled    = 8192
)

// addRun counts a batch that is a run. One that came before is only noted: its
// keys are counted when somebody asks.
func (t *Table) addRun(b *Batch) {
	key := repeat{b.Worker, b.Run}
	if sums := t.repeats[key]; sums != nil {
		sums.Add(b.Each)
		t.waiting = true
		return
	}
	if len(t.repeats) >= maxRepeats {
		t.countRepeats()
		clear(t.repeats)
	}
	t.repeats[key] = new(Sums)
	t.countRun(b)
}

// lock locks the table, all that was noted counted.
func (t *Table) lock() {
	t.mu.Lock()
	t.countWaiting()
}

// countWaiting counts all that was noted.
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

// later does work that was put off.
func (t *Table) later(work func()) {
	if t.timed || t.opts.Timed == nil {
		work()
		return
	}
	t.timed = true
	t.opts.Timed(work)
	t.timed = false
}

// countRepeats counts what was noted of runs.
func (t *Table) countRepeats() {
	for key, sums := range t.repeats {
		if *sums != (Sums{}) {
			t.countRun(&Batch{Worker: key.worker, Run: key.run, Each: *sums})
			*sums = Sums{}
		}
	}
}

// countRun counts the run's keys: a whole leaf at a time where the leaf's keys
// are as far apart, otherwise one by one.
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
		if t.used > t.room() {
			t.shrink()
			at = 0
		}
		if run = run.after(n); run.N > 0 {
			at = t.leafOf(run.First, at)
		}
	}
}

// countWhole counts the batch, a run, for all keys of the leaf.
func (t *Table) countWhole(l *leaf, b *Batch) {
	r, grown := l.row(b.Worker)
	t.addTotals(r, b, 0, l.n)
	t.used += grown + r.addCounts(l, nil, b, 0, nil)
}

// appendRun counts the batch for the keys of run, which lie in leaf number at
// behind all keys that it knows, and get leaves of their own.
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

// is reports whether the leaf's keys are the run's first n.
func (l *leaf) is(r Run, n int) bool {
	return l.keys == nil && l.n == n && l.base == r.First && (l.step == r.Step || n == 1)
}

// addRun counts a run of the batch's worker, whose row is given.
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
