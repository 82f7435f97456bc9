package counts

import "slices"

// insert makes the batch's keys [from, to) known to leaf number at and counts the batch there.
// t.missing are those that the leaf lacks. A leaf that gets too full is cut into pieces of
// equal size; insert returns the number of leaves beyond one. The leaf's totals include the
// batch already.
func (t *Table) insert(at int, b *Batch, from, to int) int {
	l := t.leaves[at]
	if l.takesFew(len(t.missing)) {
		t.insertFew(l, b, from, to)
		return 0
	}
	// The leaf is taken out of the accounting while it is rebuilt; its pieces are added at the
	// end.
	t.used -= l.bytes()
	t.mergeKeys(l, b.Keys[from:to])
	rest := *l
	pieces := (len(t.fresh) + leafKeys - 1) / leafKeys
	cut := make([]*leaf, 0, pieces)
	// Pieces of equal size: a full one and a nearly empty one would be cut again soon.
	size := (len(t.fresh) + pieces - 1) / pieces
	for i := 0; i < len(t.fresh); i += size {
		end := min(i+size, len(t.fresh))
		piece := &leaf{}
		if i == 0 {
			piece = l // keeps its place and its lower limit
		} else {
			piece.first = t.fresh[i]
		}
		piece.setKeys(t.fresh[i:end])
		piece.rows = make([]*row, len(rest.rows))
		for w, r := range rest.rows {
			if r != nil {
				piece.rows[w] = arrangedRow(r, t.from[i:end])
			}
		}
		cut = append(cut, piece)
	}
	if len(cut) > 1 {
		shareTotals(cut, rest.rows)
	}
	t.replace(at, cut)
	t.addToPieces(cut, b, from, to)
	for _, piece := range cut {
		t.used += piece.bytes()
	}
	return len(cut) - 1
}

// mergeKeys merges the leaf's keys and the missing ones into t.fresh, ascending, and puts the
// place that each had in the leaf, or -1, into t.from.
func (t *Table) mergeKeys(l *leaf, keys []uint64) {
	t.fresh, t.from = t.fresh[:0], t.from[:0]
	i := 0
	for _, m := range t.missing {
		k := keys[m]
		for ; i < l.n && l.key(i) < k; i++ {
			t.fresh, t.from = append(t.fresh, l.key(i)), append(t.from, int32(i))
		}
		t.fresh, t.from = append(t.fresh, k), append(t.from, -1)
	}
	for ; i < l.n; i++ {
		t.fresh, t.from = append(t.fresh, l.key(i)), append(t.from, int32(i))
	}
}

// setKeys sets the leaf's keys, which must not be empty, as base and step if they are
// equidistant. Dense keys then take no memory. Otherwise it copies them.
func (l *leaf) setKeys(keys []uint64) {
	l.n, l.keys, l.base, l.step = len(keys), nil, keys[0], 0
	if len(keys) > 1 {
		l.step = keys[1] - keys[0]
	}
	want := l.base
	for _, k := range keys {
		if k != want {
			l.keys = slices.Clone(keys)
			return
		}
		want += l.step
	}
}

// arrangedRow returns a copy of a row for keys that were at the places from, or are new where
// that is -1. Totals are kept.
func arrangedRow(r *row, from []int32) *row {
	fresh := slices.Contains(from, -1)
	s := &row{total: r.total}
	for p := range r.planes {
		s.planes[p] = r.planes[p].arranged(from, fresh)
	}
	return s
}

// shareTotals gives each piece of a leaf the totals of its own keys. Only open leaves are cut,
// whose planes hold all amounts except those of the batch in progress, which addToPieces adds.
// rows are those of the leaf before it was cut.
func shareTotals(cut []*leaf, rows []*row) {
	for w, r := range rows {
		if r == nil {
			continue
		}
		for _, piece := range cut {
			s := piece.rows[w]
			s.total = s.sums(piece.n)
		}
	}
}

// sums returns the sums of the planes over n keys.
func (r *row) sums(n int) (sum [Planes]uint64) {
	for p := range sum {
		if r.planes[p].cells == nil {
			sum[p] = r.planes[p].at(0) * uint64(n)
			continue
		}
		for i := range n {
			sum[p] += r.planes[p].at(i)
		}
	}
	return sum
}

// replace puts the pieces in the place of leaf number at.
func (t *Table) replace(at int, cut []*leaf) {
	if len(cut) == 1 {
		return
	}
	firsts := make([]uint64, len(cut))
	for i, piece := range cut {
		firsts[i] = piece.first
	}
	t.leaves = slices.Replace(t.leaves, at, at+1, cut...)
	t.firsts = slices.Replace(t.firsts, at, at+1, firsts...)
}

// addToPieces counts the batch's keys [from, to), all of which the pieces know now. A leaf that
// was not cut has the batch in its totals already.
func (t *Table) addToPieces(cut []*leaf, b *Batch, from, to int) {
	for i, piece := range cut {
		end := to
		if i+1 < len(cut) {
			end = from + countBelow(b.Keys[from:to], cut[i+1].first)
		}
		if end == from {
			continue
		}
		keys := b.Keys[from:end]
		r, _ := piece.row(b.Worker)
		if piece.isWhole(keys) {
			r.addCounts(piece, nil, b, from, nil)
		} else {
			t.found, t.missing = piece.find(keys, t.found[:0], t.missing[:0])
			r.addCounts(piece, t.found, b, from, nil)
		}
		if len(cut) > 1 {
			addShare(r, b, from, end)
		}
		from = end
	}
}

// addShare adds the batch's keys [from, to) to the totals of the row of a piece.
func addShare(r *row, b *Batch, from, to int) { (*Sums)(&r.total).Add(b.total(from, to)) }
