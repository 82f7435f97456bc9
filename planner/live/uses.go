package live

import (
	"cmp"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A worker is what one worker has done since the last decision and before. steps, seen and batch
// are since the last decision; was and wasSteps are of the last decision before which it was heard
// of, and stand in for it while it is silent.
type worker struct {
	machine int
	// The steps in its windows since the last decision.
	steps uint64
	seen  useList
	batch dynamic.Batch
	// Its steps in all, as last reported.
	total uint64
	// total at the last decision; valid if known.
	before uint64
	known  bool // before is right
	// It has turned to other keys since the last decision, or a moment before.
	hurried bool
	// The round of the job when it was last heard of.
	round    uint32
	was      useList
	wasSteps uint64
}

// A seenUse is an item and the bytes of its uses.
type seenUse struct {
	item  int32
	bytes float32
}

// A useList has the uses of a worker in the order of its reports. An item may occur more than once;
// duplicates are merged when the list has doubled, so that it stays within about twice the number
// of distinct items.
//
// Invariant: len(all) <= 2*merged + compactFrom.
type useList struct {
	all []seenUse
	// How many the last merge left.
	merged int
}

// compactFrom is how many uses may be added beyond twice the last merge before the list is merged
// again.
const compactFrom = 1 << 14

// addUse appends a use. Merging is amortized: it happens only when the list has doubled.
func (l *useList) addUse(item int32, bytes float32) {
	if len(l.all) >= 2*l.merged+compactFrom {
		l.merge()
	}
	l.all = append(l.all, seenUse{item, bytes})
}

// merge sorts by item and adds up the uses of each.
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

// reset empties the list and keeps its memory.
func (l *useList) reset() { l.all, l.merged = l.all[:0], 0 }

// renumber drops the items whose new number is negative and renumbers the others.
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

// epoch returns the uses since the last decision and starts the next collection. Without any use it
// returns an epoch without steps.
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
	var left []dynamic.Departure
	for _, name := range names {
		w := j.workers[name]
		if w.steps > 0 {
			e.Heard[w.machine] = true
			// The lists change places, so that their memory is used again.
			w.was, w.seen = w.seen, w.was
			w.wasSteps = w.steps
			if w.hurried {
				left = w.appendDepartures(left)
			}
			w.hurried = false
			w.seen.reset()
		} else if j.round-w.round > patience+1 || w.wasSteps == 0 {
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
	e.Left = unused(left, e.Uses)
	return e
}

// appendDepartures adds the items that the worker used before (w.seen) and does not use any more
// (w.was), if they were most of what it did. Fewer may be items that chance, or a sample, has left
// out.
func (w *worker) appendDepartures(left []dynamic.Departure) []dynamic.Departure {
	w.seen.merge()
	w.was.merge()
	from, at, all, gone := len(left), 0, 0.0, 0.0
	for _, u := range w.seen.all {
		for at < len(w.was.all) && w.was.all[at].item < u.item {
			at++
		}
		all += float64(u.bytes)
		if at == len(w.was.all) || w.was.all[at].item != u.item {
			left = append(left, dynamic.Departure{Item: u.item, Machine: int32(w.machine)})
			gone += float64(u.bytes)
		}
	}
	if 2*gone <= all {
		return left[:from]
	}
	return left
}

// unused returns the departures in the order of uses, without those of items that another worker of
// the machine does use.
func unused(left []dynamic.Departure, uses []dynamic.Use) []dynamic.Departure {
	slices.SortFunc(left, func(a, b dynamic.Departure) int {
		return cmp.Or(cmp.Compare(a.Item, b.Item), cmp.Compare(a.Machine, b.Machine))
	})
	left = slices.Compact(left)
	at := 0
	return slices.DeleteFunc(left, func(d dynamic.Departure) bool {
		for at < len(uses) && (uses[at].Item < d.Item || uses[at].Item == d.Item && uses[at].Machine < d.Machine) {
			at++
		}
		return at < len(uses) && uses[at].Item == d.Item && uses[at].Machine == d.Machine
	})
}

// usesOf returns one use for each item and machine, by item, then machine, scaled to that many
// steps. The workers must be sorted by machine. It is a counting sort over items, since there are
// millions of uses.
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

// elapsed sets the number of steps of an epoch: the mean, over the workers that were heard of, of
// the steps since the last decision. It returns the number of these workers, and the mean number of
// steps in their windows, which may be smaller, since windows have bounded room.
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
