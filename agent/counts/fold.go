package counts

import (
	"cmp"
	"slices"
)

const (
	// keptKeys is how many of its hottest keys a leaf keeps when it is folded.
	keptKeys = 32
	// keptFactor is how many times hotter than the leaf's mean they must be. In a leaf of even
	// heat, no key is worth a place of its own.
	keptFactor = 4
	// promoteLeast is the lowest estimate from which a key can be promoted.
	promoteLeast = 64
	// shrinkTo is the fraction of the memory that is in use after shrinking. The rest makes the
	// next time come later: shrinking visits all leaves.
	shrinkTo = 0.85
)

// shrink makes the table fit its memory, at the least loss of detail: planes whose amounts have
// become equal are stored as one number (no loss), then the coldest leaves are folded (keys
// become estimates), then folded neighbours are merged (blocks become coarser). The caller
// holds t.mu and has counted what was put off.
func (t *Table) shrink() {
	goal := int(shrinkTo * float64(t.room()))
	t.settle()
	if t.used > goal {
		t.foldColdest(goal)
	}
	// Folded leaves still take a row for each worker, so that many small ones can exceed the
	// memory by themselves.
	for t.used > goal && len(t.leaves) > 1 {
		if !t.mergeFolded() {
			return
		}
	}
}

// settle compacts all planes.
func (t *Table) settle() {
	for _, l := range t.leaves {
		t.used -= l.bytes()
		for _, r := range l.rows {
			for p := 0; r != nil && p < allPlanes; p++ {
				r.planes[p].compact(l.n)
			}
		}
		t.used += l.bytes()
	}
}

// foldColdest folds leaves in the order of their accesses per key until the goal, in bytes, is
// reached. Leaves with no more than keptKeys keys would gain nothing.
func (t *Table) foldColdest(goal int) {
	type candidate struct {
		leaf *leaf
		heat float64 // accesses a key
	}
	var open []candidate
	for _, l := range t.leaves {
		if l.folded == nil && l.n > keptKeys {
			open = append(open, candidate{l, float64(l.accesses()) / float64(l.n)})
		}
	}
	slices.SortStableFunc(open, func(a, b candidate) int { return cmp.Compare(a.heat, b.heat) })
	// Only now: most tables are exact for ever and need no sketch.
	if t.sketch == nil && len(open) > 0 {
		t.sketch = newSketch(t.opts.SketchBytes)
	}
	for _, c := range open {
		if t.used <= goal {
			return
		}
		t.used -= c.leaf.bytes()
		t.fold(c.leaf)
		t.used += c.leaf.bytes()
	}
}

// fold turns an open leaf into a folded one that knows its hottest keys only.
func (t *Table) fold(l *leaf) {
	l.folded = &folded{threshold: promoteLeast}
	t.keep(l, l.hottest(keptKeys, keptFactor))
}

// hottest returns the places of at most limit keys with at least factor times the leaf's mean
// accesses, in ascending order of places.
func (l *leaf) hottest(limit int, factor float64) []int32 {
	type hot struct {
		place    int32
		accesses uint64
	}
	sum := uint64(0)
	all := make([]hot, l.n)
	for i := range all {
		all[i] = hot{int32(i), l.accessesAt(i)}
		sum += all[i].accesses
	}
	least := uint64(factor * float64(sum) / float64(max(l.n, 1)))
	all = slices.DeleteFunc(all, func(h hot) bool { return h.accesses < least })
	slices.SortStableFunc(all, func(a, b hot) int { return cmp.Compare(b.accesses, a.accesses) })
	places := make([]int32, min(limit, len(all)))
	for i := range places {
		places[i] = all[i].place
	}
	slices.Sort(places)
	return places
}

// keep drops all keys of a folded leaf except those at the given places: their accesses move to
// the sketch, and the keys are counted in the leaf's distinct registers. The totals of the rows
// do not change, so sums of blocks stay exact.
func (t *Table) keep(l *leaf, places []int32) {
	next := 0
	for i := range l.n {
		if next < len(places) && int(places[next]) == i {
			next++
			continue
		}
		key := l.key(i)
		l.folded.distinct.addKey(key)
		for w, r := range l.rows {
			if r == nil {
				continue
			}
			l.folded.accesses += r.planes[Earlier].at(i) // these were never removed from the sketch
			// Only what was counted since a promotion. The part before it is in the sketch
			// already.
			if n := r.planes[Pulls].at(i) + r.planes[Pushes].at(i); n > 0 {
				t.sketch.addAccesses(pairHash(w, key), n)
				l.folded.accesses += n
			}
		}
	}
	kept := make([]uint64, len(places))
	for i, p := range places {
		kept[i] = l.key(int(p))
	}
	for w, r := range l.rows {
		if r != nil {
			l.rows[w] = arrangedRow(r, places)
		}
	}
	if len(kept) == 0 {
		l.n, l.keys, l.step = 0, nil, 0
		return
	}
	l.setKeys(kept)
}

// addFolded counts the batch's keys in t.missing in the sketch, because the folded leaf does
// not know them one by one, and promotes those whose estimate reaches the threshold.
func (t *Table) addFolded(l *leaf, b *Batch, from int) {
	var hot []int32
	for _, m := range t.missing {
		n := b.accesses(from + int(m))
		if n == 0 {
			continue // an answer: its bytes are in the totals, and the sketch counts accesses only
		}
		key := b.Keys[from+int(m)]
		l.folded.distinct.addKey(key)
		l.folded.accesses += n
		if t.sketch.addAccesses(pairHash(b.Worker, key), n) >= l.folded.threshold {
			hot = append(hot, m)
		}
	}
	if len(hot) > 0 {
		t.promote(l, b, from, hot)
	}
}

// promote makes keys of the batch known one by one in a folded leaf if their estimates are far
// above the leaf's mean and above the sketch's error. Otherwise a key that collides with a hot
// one would be promoted in its place. The threshold is renewed on each attempt, so a leaf that
// gets many accesses does not try again with every batch.
func (t *Table) promote(l *leaf, b *Batch, from int, hot []int32) {
	rest := max(l.folded.distinct.estimate(), 1)
	mean := l.folded.accesses / rest
	l.folded.threshold = max(promoteLeast, 2*t.sketch.bound(), keptFactor*mean)
	hot = slices.DeleteFunc(hot, func(m int32) bool {
		return t.sketch.estimate(pairHash(b.Worker, b.Keys[from+int(m)])) < l.folded.threshold
	})
	// A folded leaf does not exceed the size of an open one.
	hot = hot[:min(len(hot), leafKeys-l.n)]
	if len(hot) == 0 {
		return
	}
	t.used -= l.bytes()
	defer func() { t.used += l.bytes() }()
	t.missing = append(t.missing[:0], hot...)
	t.mergeKeys(l, b.Keys[from:])
	for w, r := range l.rows {
		if r == nil {
			continue
		}
		r = arrangedRow(r, t.from)
		for i, place := range t.from {
			if place < 0 {
				// For every worker, not just the batch's: each has a count of its own in the
				// sketch.
				before := t.sketch.estimate(pairHash(w, t.fresh[i]))
				r.planes[Earlier].addAt(len(t.fresh), []int32{int32(i)}, before)
				// Estimates may exceed what was counted.
				l.folded.accesses -= min(before, l.folded.accesses)
			}
		}
		l.rows[w] = r
	}
	l.setKeys(t.fresh)
}

// mergeFolded merges folded neighbours, two by two, and reports whether there were any. Each
// call halves at most the number of folded leaves.
func (t *Table) mergeFolded() bool {
	merged := false
	kept := t.leaves[:0]
	for i := 0; i < len(t.leaves); i++ {
		l := t.leaves[i]
		if i+1 < len(t.leaves) && l.folded != nil && t.leaves[i+1].folded != nil {
			t.used -= l.bytes() + t.leaves[i+1].bytes()
			t.mergeInto(l, t.leaves[i+1])
			t.used += l.bytes()
			merged = true
			i++
		}
		kept = append(kept, l)
	}
	clear(t.leaves[len(kept):])
	t.leaves = slices.Clip(kept)
	t.firsts = t.firsts[:0]
	for _, l := range t.leaves {
		t.firsts = append(t.firsts, l.first)
	}
	if merged {
		t.merges++
	}
	return merged
}

// mergeInto merges the folded leaf m into its lower neighbour l, which then covers both ranges
// and keeps the hottest keys of both.
func (t *Table) mergeInto(l, m *leaf) {
	keys := make([]uint64, 0, l.n+m.n)
	left, right := make([]int32, 0, l.n+m.n), make([]int32, 0, l.n+m.n)
	for i := range l.n {
		keys, left, right = append(keys, l.key(i)), append(left, int32(i)), append(right, -1)
	}
	for i := range m.n {
		keys, left, right = append(keys, m.key(i)), append(left, -1), append(right, int32(i))
	}
	l.rows = slices.Grow(l.rows, max(len(m.rows)-len(l.rows), 0))
	for w := range max(len(l.rows), len(m.rows)) {
		if r := joinedRow(l.rowOrNil(w), m.rowOrNil(w), left, right); r != nil {
			to, _ := l.row(w)
			*to = *r
		}
	}
	l.folded.distinct.merge(&m.folded.distinct)
	l.folded.accesses += m.folded.accesses
	l.folded.threshold = max(l.folded.threshold, m.folded.threshold)
	if len(keys) > 0 {
		l.setKeys(keys)
		// Factor 0: these keys have earned their place already, they only compete for the
		// number of places.
		t.keep(l, l.hottest(keptKeys, 0))
	}
}

// rowOrNil returns a worker's row, nil if it was never here.
func (l *leaf) rowOrNil(worker int) *row {
	if worker < len(l.rows) {
		return l.rows[worker]
	}
	return nil
}

// joinedRow returns the row for the keys of two leaves. Key i was at place left[i] of a or
// right[i] of b; the other one is -1. Either row may be nil.
func joinedRow(a, b *row, left, right []int32) *row {
	if a == nil && b == nil {
		return nil
	}
	r := new(row)
	for _, part := range []struct {
		row  *row
		from []int32
	}{{a, left}, {b, right}} {
		if part.row == nil {
			continue
		}
		for p := range r.total {
			r.total[p] += part.row.total[p]
		}
		for p := range r.planes {
			for i, place := range part.from {
				if place < 0 {
					continue
				}
				if amount := part.row.planes[p].at(int(place)); amount > 0 {
					r.planes[p].addAt(len(part.from), []int32{int32(i)}, amount)
				}
			}
		}
	}
	return r
}
