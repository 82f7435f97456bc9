package counts

import "slices"

// fewFrom is the share of a leaf's keys, one in this many, up to which new ones are
// inserted in place instead of rebuilding the leaf.
const fewFrom = 4

// takesFew reports whether that many new keys are few for the leaf, and fit.
func (l *leaf) takesFew(missing int) bool {
	return l.keys != nil && l.n+missing <= leafKeys && missing*fewFrom <= l.n
}

// insertFew makes the keys of the batch in t.missing known to the leaf, and counts
// the batch there, of which t.found are the places of the others. The totals of the
// leaf's row have been added to already.
//
// Keys that are hashed come to a leaf a few at a time. The keys between them move as
// blocks; where there is no room left, some is made for those that come next.
func (t *Table) insertFew(l *leaf, b *Batch, from, to int) {
	keys, low := b.Keys[from:to], 0
	t.from = t.from[:0]
	for _, m := range t.missing {
		low, _ = searchFrom(l.keys, low, keys[m])
		t.from = append(t.from, int32(low))
	}
	t.used += l.makeRoom(t.from)
	for i, m := range t.missing {
		l.keys[int(t.from[i])+i] = keys[m]
	}
	if step := l.keys[1] - l.keys[0]; l.keys[l.n-1]-l.keys[0] == uint64(l.n-1)*step { // a gap was closed
		t.used -= 8 * cap(l.keys)
		l.setKeys(l.keys)
		t.used += 8 * cap(l.keys)
	}
	t.places = t.places[:0]
	found, fresh := t.found, 0
	for i := range int32(len(keys)) {
		if fresh < len(t.missing) && t.missing[fresh] == i {
			t.places = append(t.places, t.from[fresh]+int32(fresh))
			fresh++
			continue
		}
		t.places, found = append(t.places, found[0]+int32(fresh)), found[1:]
	}
	t.used += l.rows[b.Worker].addCounts(l, t.places, b, from, nil)
}

// makeRoom puts new keys, which are not set yet and were not used by anybody, before the
// places at, which ascend, and returns the bytes by which the leaf grew.
func (l *leaf) makeRoom(at []int32) (grown int) {
	n, before := l.n, cap(l.keys)
	l.keys = spaced(l.keys, n, at)[:n+len(at)]
	grown = 8 * (cap(l.keys) - before)
	for _, r := range l.rows {
		if r == nil {
			continue
		}
		for p := range r.planes {
			grown += r.planes[p].makeRoom(n, at)
		}
	}
	l.n = n + len(at)
	return grown
}

// makeRoom puts zeros before the places at of a leaf of n keys, and returns the bytes by
// which the plane grew.
func (p *plane) makeRoom(n int, at []int32) (grown int) {
	if p.cells == nil {
		if p.value == 0 {
			return 0
		}
		grown = p.widen(p.value, n)
	}
	before := p.bytes()
	switch c := p.cells.(type) {
	case []uint8:
		space(p, c, n, at)
	case []uint16:
		space(p, c, n, at)
	case []uint32:
		space(p, c, n, at)
	case []uint64:
		space(p, c, n, at)
	}
	return grown + p.bytes() - before
}

// space puts zeros into c, the plane's cells. To put those into an interface takes memory
// too, so that it is done only where they have moved, and then their length is another.
func space[T cell](p *plane, c []T, n int, at []int32) {
	if s := spaced(c, n, at); len(s) != len(c) {
		p.cells = s
	}
}

// spaced returns s, which has n elements and perhaps zeros after them, with a zero before
// each of the places at, which ascend, in the same memory where that has room. Its length
// is its capacity: what follows are zeros.
func spaced[T cell](s []T, n int, at []int32) []T {
	to := s[:cap(s)]
	if n+len(at) > cap(s) {
		to = slices.Grow([]T(nil), n+len(at)+n/16)
		to = to[:cap(to)] // all of what the allocator gives
		copy(to, s[:at[0]])
		clear(to[n+len(at):])
	}
	end := n
	for i := len(at) - 1; i >= 0; i-- {
		from := int(at[i])
		copy(to[from+i+1:], s[from:end])
		to[from+i] = 0
		end = from
	}
	return to
}
