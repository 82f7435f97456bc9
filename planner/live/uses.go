package live

import (
	"cmp"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A worker is what one worker did since the last decision, and before.
type worker struct {
	machine int
	steps   uint64 // of the windows
	seen    useList
	batch   dynamic.Batch
	total   uint64 // steps in all, as last reported
	before  uint64 // at the last decision
	known   bool   // before is right
	missed  int    // decisions since it was heard of
	// was are its uses in the windows before the last decision in which it was
	// heard of, and their number of steps.
	was      useList
	wasSteps uint64
}

// seenUse is a number of bytes of an item.
type seenUse struct {
	item  int32
	bytes float32
}

// A useList has the uses of a worker, in the order of its reports. An item may be
// there more than once, but the list is never much longer than were it not so.
//
// Invariant: len(all) < compactFrom or at most twice what the last merge left, and
// compactFrom more.
type useList struct {
	all    []seenUse
	merged int // how many the last merge left
}

// compactFrom is how many uses may be added before it is looked which are of one item.
const compactFrom = 1 << 14

func (l *useList) addUse(item int32, bytes float32) {
	if len(l.all) >= 2*l.merged+compactFrom {
		l.merge()
	}
	l.all = append(l.all, seenUse{item, bytes})
}

// merge makes the uses of an item one, and sorts by item.
func (l *useList) merge() {
	slices.SortStableFunc(l.all, func(a, b seenUse) int { return cmp.Compare(a.item, b.item) })
	n := 0
	for i, u := range l.all {
		if i > 0 && l.all[n-1].item == u.item {
			l.all[n-1].bytes += u.bytes
			continue
		}
		l.all[n] = u
		n++
	}
	l.all, l.merged = l.all[:n], n
}

// reset empties the list; its memory stays for the next uses.
func (l *useList) reset() { l.all, l.merged = l.all[:0], 0 }

// renumber leaves out items whose number is below 0, and gives the others theirs.
func (l *useList) renumber(number []int32) {
	n := 0
	for _, u := range l.all {
		if to := number[u.item]; to >= 0 {
			l.all[n] = seenUse{to, u.bytes}
			n++
		}
	}
	l.all, l.merged = l.all[:n], min(l.merged, n)
}

// epoch returns what was used since the last decision, and starts over; steps
// is 0 where nothing was.
func (j *job) epoch() *dynamic.Epoch {
	e := &dynamic.Epoch{}
	names := slices.Sorted(maps.Keys(j.workers))
	active, seen := j.elapsed(e)
	if active == 0 {
		return e
	}
	e.Share = min(seen/e.Steps, 1)
	e.Heard = make([]bool, len(j.hosts))
	var heard []*worker
	for _, name := range names {
		w := j.workers[name]
		if w.steps > 0 {
			e.Heard[w.machine] = true
			w.was, w.seen = w.seen, w.was
			w.wasSteps = w.steps
			w.seen.reset()
		} else if w.missed++; w.missed > patience || w.wasSteps == 0 {
			continue
		}
		heard = append(heard, w)
		if len(w.batch.Pulled)+len(w.batch.Updated) > 0 {
			b := w.batch
			if len(b.Pulled) == 0 {
				b.Pulled = b.Updated
			}
			e.Batches = append(e.Batches, b)
		}
		w.steps, w.batch = 0, dynamic.Batch{}
	}
	slices.SortStableFunc(heard, func(a, b *worker) int { return cmp.Compare(a.machine, b.machine) })
	e.Uses = usesOf(heard, len(j.keys), e.Steps)
	return e
}

// usesOf returns the uses of workers, which are sorted by machine, scaled to a number of
// steps: one for each item and machine, by item, then machine. It is a counting sort,
// since there are millions of uses.
func usesOf(workers []*worker, items int, steps float64) []dynamic.Use {
	at := make([]int32, items+1) // where the next use of an item goes
	for _, w := range workers {
		for _, u := range w.was.all {
			at[u.item+1]++
		}
	}
	for i := range items {
		at[i+1] += at[i]
	}
	all := make([]dynamic.Use, at[items])
	for _, w := range workers {
		per := steps / float64(w.wasSteps)
		for _, u := range w.was.all {
			all[at[u.item]] = dynamic.Use{Item: u.item, Machine: int32(w.machine), Bytes: float32(float64(u.bytes) * per)}
			at[u.item]++
		}
	}
	n := 0
	for from := 0; from < len(all); {
		to, sum := from, 0.0
		for ; to < len(all) && all[to].Item == all[from].Item && all[to].Machine == all[from].Machine; to++ {
			sum += float64(all[to].Bytes)
		}
		all[n] = dynamic.Use{Item: all[from].Item, Machine: all[from].Machine, Bytes: float32(sum)}
		from, n = to, n+1
	}
	return all[:n]
}

// elapsed sets how many steps an epoch has: those that the workers which were
// heard of made since the last decision, in the mean. It returns how many such
// workers there are, and the mean of the steps of their windows, which may be
// fewer.
func (j *job) elapsed(e *dynamic.Epoch) (active, seen float64) {
	for _, w := range j.workers {
		if w.steps > 0 {
			steps := float64(w.steps)
			if w.known && w.total > w.before {
				steps = float64(w.total - w.before)
			}
			active, seen, e.Steps = active+1, seen+float64(w.steps), e.Steps+steps
			w.known = true
		}
	}
	if active == 0 {
		return 0, 0
	}
	for _, w := range j.workers {
		w.before = w.total
	}
	e.Steps /= active
	return active, seen / active
}
