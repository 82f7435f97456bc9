package counts

import "slices"

// fewFrom bounds in-place insertion: to at most one new key for this many in the leaf. Beyond
// it the leaf is rebuilt.
const fewFrom = 4

// takesFew reports whether so many new keys can be inserted in place.
func (l *leaf) takesFew(missing int) bool {
	return l.keys != nil && l.n+missing <= leafKeys && missing*fewFrom <= l.n
}

// insertFew inserts the batch's keys in t.missing into a leaf, in place, and counts the batch
// there; t.found are the places of its other keys. The leaf's totals include the batch already.
//
// Hashed keys arrive at a leaf a few at a time. The keys between them move as blocks, and where
// capacity has to grow it grows by more than is needed now.
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
	// Equidistant again, since a gap was closed: base and step suffice, and finding a key
	// becomes a division.
	if step := l.keys[1] - l.keys[0]; l.keys[l.n-1]-l.keys[0] == uint64(l.n-1)*step { // equidistant again, since a gap was closed: base and step suffice
		t.used -= 8 * cap(l.keys)
		l.setKeys(l.keys)
		t.used += 8 * cap(l.keys)
	}
	t.places = t.places[:0]
	// The places of the keys that were there have moved up by the number of new keys before
	// them.
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

// makeRoom inserts a key before each of the places at, which ascend, and returns the bytes by
// which the leaf grew. The keys themselves are set by the caller; their amounts are zero in
// every plane.
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

// makeRoom inserts a zero before each of the places at in the plane of a leaf of n keys, and
// returns the bytes by which the plane grew.
func (p *plane) makeRoom(n int, at []int32) (grown int) {
	if p.cells == nil {
		// A uniform plane of zeros stays one.
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

// space inserts zeros into c, the plane's cells. Storing a slice in an interface allocates, so
// that is done only if the slice has changed, which its length tells.
func space[T cell](p *plane, c []T, n int, at []int32) {
	if s := spaced(c, n, at); len(s) != len(c) {
		p.cells = s
	}
}

// spaced inserts a zero before each of the places at, which ascend, into s, whose first n
// elements are in use and whose others are zero. It works in place if the capacity suffices.
// The result's length is its capacity.
func spaced[T cell](s []T, n int, at []int32) []T {
	to := s[:cap(s)]
	if n+len(at) > cap(s) {
		to = slices.Grow([]T(nil), n+len(at)+n/16)
		to = to[:cap(to)] // all of what the allocator gives
		copy(to, s[:at[0]])
		clear(to[n+len(at):])
	}
	// From the end, so that no element is overwritten before it has moved.
	end := n
	for i := len(at) - 1; i >= 0; i-- {
		from := int(at[i])
		copy(to[from+i+1:], s[from:end])
		to[from+i] = 0
		end = from
	}
	return to
}
