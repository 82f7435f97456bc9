package counts

// Forget removes the keys from first to last, and what was counted for them. Of a folded leaf it removes those
// that the leaf knows one by one.
func (t *Table) Forget(first, last uint64) {
	t.lock()
	defer t.mu.Unlock()
	for at := t.leafOf(first, 0); at < len(t.leaves) && t.firsts[at] <= last; at++ {
		t.forget(t.leaves[at], first, last)
	}
}

// forget is Forget for one leaf.
func (t *Table) forget(l *leaf, first, last uint64) {
	var kept []uint64
	var places []int32
	for i := range l.n {
		if k := l.key(i); k < first || k > last {
			kept, places = append(kept, k), append(places, int32(i))
		}
	}
	if len(kept) == l.n {
		return
	}
	t.used -= l.bytes()
	for w, r := range l.rows {
		if r == nil {
			continue
		}
		rest := arrangedRow(r, places)
		before, after := r.sums(l.n), rest.sums(len(kept))
		for p := range before {
			rest.total[p] -= before[p] - after[p]
			t.total[p] -= before[p] - after[p]
		}
		if len(kept) == 0 {
			rest.planes = [allPlanes]plane{}
		}
		l.rows[w] = rest
	}
	if len(kept) > 0 {
		l.setKeys(kept)
	} else {
		l.n, l.keys, l.base, l.step = 0, nil, 0, 0
		if l.folded == nil {
			l.rows = nil // the totals of no keys
		}
	}
	t.used += l.bytes()
}
