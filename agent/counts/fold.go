package counts

import (
	"cmp"
	"slices"
)

const (
	// keptKeys is how many of its hottest keys a leaf keeps when it is folded.
	keptKeys = 32
	// keptFactor is how much hotter than the leaf's mean they have to be.
	keptFactor = 4
	// promoteLeast is the least estimate at which a key is promoted.
	promoteLeast = 64
	// shrinkTo is the share of the allowed memory that is left in use.
	shrinkTo = 0.85
)

// shrink makes the table fit its memory: planes that became uniform are stored
// so, then the coldest leaves are folded, then folded neighbours are merged.
func (t *Table) shrink() {
	goal := int(shrinkTo * float64(t.room()))
	t.settle()
	if t.used > goal {
		t.foldColdest(goal)
	}
	for t.used > goal && len(t.leaves) > 1 {
		if !t.mergeFolded() {
			return
		}
	}
}

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

// fold gives up all keys of the leaf but its hottest.
func (t *Table) fold(l *leaf) {
	l.folded = &folded{threshold: promoteLeast}
	t.keep(l, l.hottest(keptKeys, keptFactor))
}

// hottest returns the places of at most limit keys that have at least factor
// times the leaf's mean accesses, ascending.
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

// keep gives up all keys of a folded leaf but those at the given places: their
// accesses go to the sketch. The rows' totals stay what they are.
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
			l.folded.accesses += r.planes[Earlier].at(i) // still in the sketch
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

// addFolded counts the batch's keys in t.missing, which the folded leaf does
// not know one by one, and promotes those that turn out hot.
func (t *Table) addFolded(l *leaf, b *Batch, from int) {
	var hot []int32
	for _, m := range t.missing {
		n := b.accesses(from + int(m))
		if n == 0 {
			continue // bytes are in the totals
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

// promote makes keys of the batch known one by one in a folded leaf, if they
// are far above the leaf's others and above the sketch's error.
func (t *Table) promote(l *leaf, b *Batch, from int, hot []int32) {
	rest := max(l.folded.distinct.estimate(), 1)
	mean := l.folded.accesses / rest
	l.folded.threshold = max(promoteLeast, 2*t.sketch.bound(), keptFactor*mean)
	hot = slices.DeleteFunc(hot, func(m int32) bool {
		return t.sketch.estimate(pairHash(b.Worker, b.Keys[from+int(m)])) < l.folded.threshold
	})
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
				before := t.sketch.estimate(pairHash(w, t.fresh[i]))
				r.planes[Earlier].addAt(len(t.fresh), []int32{int32(i)}, before)
				l.folded.accesses -= min(before, l.folded.accesses)
			}
		}
		l.rows[w] = r
	}
	l.setKeys(t.fresh)
}

// mergeFolded merges folded neighbours in pairs and reports whether there were
// any.
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

// mergeInto adds the folded leaf m to its folded lower neighbour l, which
// keeps the hottest keys of both.
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
		t.keep(l, l.hottest(keptKeys, 0))
	}
}

func (l *leaf) rowOrNil(worker int) *row {
	if worker < len(l.rows) {
		return l.rows[worker]
	}
	return nil
}

// joinedRow returns the row of two leaves' keys one after the other, where
// left and right say which place a key had in which of them.
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
