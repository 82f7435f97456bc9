package counts

import "slices"

// leafKeys is how many keys a leaf holds at most.
const leafKeys = 512

// A leaf covers the keys from first up to the next leaf's first. An open leaf knows all its
// keys one by one. A folded one knows its hottest keys only; the others are in its totals and
// in the table's sketch.
type leaf struct {
	first uint64
	n     int      // number of keys known one by one
	keys  []uint64 // these keys, ascending; nil if they are base, base+step and so on
	base  uint64
	step  uint64
	rows  []*row // by worker; nil for a worker that was never here; may be short

	// nil while the leaf is open
	folded *folded
}

// A row is one worker's share of a leaf.
type row struct {
	total  [Planes]uint64 // over all keys, including those that are not known one by one
	planes [allPlanes]plane
}

// folded is what a leaf knows about the keys that it does not know one by one.
type folded struct {
	distinct  registers // estimates the number of such keys
	accesses  uint64    // to them by all workers, as counted into the sketch
	threshold uint64    // estimate from which a key is a candidate for promotion
}

// Sizes of the structs, for the memory accounting.
const (
	leafBytes   = 112
	rowBytes    = 8 + 8*Planes + allPlanes*32
	foldedBytes = registerCount + 16
)

// bytes returns the memory of the leaf.
func (l *leaf) bytes() int {
	n := leafBytes + 8*cap(l.keys)
	for _, r := range l.rows {
		n += 8
		if r == nil {
			continue
		}
		n += rowBytes
		for i := range r.planes {
			n += r.planes[i].bytes()
		}
	}
	if l.folded != nil {
		n += foldedBytes
	}
	return n
}

// key returns key number i, in ascending order.
func (l *leaf) key(i int) uint64 {
	if l.keys == nil {
		return l.base + uint64(i)*l.step
	}
	return l.keys[i]
}

// row returns a worker's row, creating it if need be, and the bytes by which the leaf grew.
func (l *leaf) row(worker int) (r *row, grown int) {
	if worker >= len(l.rows) {
		// Rows are pointers: a worker that never comes to a leaf costs 8 bytes there, or none.
		grown = 8 * (worker + 1 - len(l.rows))
		l.rows = append(l.rows, make([]*row, worker+1-len(l.rows))...)
	}
	if l.rows[worker] == nil {
		l.rows[worker] = new(row)
		grown += rowBytes
	}
	return l.rows[worker], grown
}

// accesses returns the pulls and pushes of all keys by all workers.
func (l *leaf) accesses() uint64 {
	sum := uint64(0)
	for _, r := range l.rows {
		if r != nil {
			sum += r.total[Pulls] + r.total[Pushes]
		}
	}
	return sum
}

// accessesAt returns the accesses of key i by all workers, including the estimate for those
// before its promotion.
func (l *leaf) accessesAt(i int) uint64 {
	sum := uint64(0)
	for _, r := range l.rows {
		if r != nil {
			sum += r.planes[Pulls].at(i) + r.planes[Pushes].at(i) + r.planes[Earlier].at(i)
		}
	}
	return sum
}

// distinct returns the number of distinct keys: exact for an open leaf, else an estimate.
func (l *leaf) distinct() uint64 {
	if l.folded == nil {
		return uint64(l.n)
	}
	return uint64(l.n) + l.folded.distinct.estimate()
}

// isWhole reports whether keys, which ascend, are exactly the leaf's, so that no place needs to
// be looked up.
func (l *leaf) isWhole(keys []uint64) bool {
	if len(keys) != l.n {
		return false
	}
	if l.keys != nil {
		return slices.Equal(keys, l.keys)
	}
	if keys[0] != l.base || keys[len(keys)-1] != l.key(l.n-1) {
		return false
	}
	if l.step <= 1 {
		return true // ascending, as many, and with the same ends
	}
	want := l.base
	for _, k := range keys {
		if k != want {
			return false
		}
		want += l.step
	}
	return true
}

// mergeFrom decides how keys are found: with more than one in this many of the leaf's keys,
// walking along both lists beats searching for each.
const mergeFrom = 12

// find appends the places of the keys that the leaf knows to found, and the indexes in keys of
// the others to missing. keys ascend.
func (l *leaf) find(keys []uint64, found, missing []int32) (_, _ []int32) {
	switch {
	case l.keys == nil:
		return l.findInSteps(keys, found, missing)
	case len(keys)*mergeFrom > l.n:
		return findByMerging(l.keys, keys, found, missing)
	}
	from := 0
	for i, k := range keys {
		at, ok := searchFrom(l.keys, from, k)
		if ok {
			found = append(found, int32(at))
			at++
		} else {
			missing = append(missing, int32(i))
		}
		from = at
	}
	return found, missing
}

// findInSteps is find for equidistant keys, where a place is a division.
func (l *leaf) findInSteps(keys []uint64, found, missing []int32) (_, _ []int32) {
	for i, k := range keys {
		at := uint64(0)
		off := k - l.base
		ok := l.n > 0 && k >= l.base
		if ok && l.step > 0 {
			at = off / l.step
			ok = at*l.step == off && at < uint64(l.n)
		} else {
			ok = ok && off == 0
		}
		if ok {
			found = append(found, int32(at))
		} else {
			missing = append(missing, int32(i))
		}
	}
	return found, missing
}

// findByMerging is find for many keys.
func findByMerging(known, keys []uint64, found, missing []int32) (_, _ []int32) {
	at := 0
	for i, k := range keys {
		for at < len(known) && known[at] < k {
			at++
		}
		if at < len(known) && known[at] == k {
			found = append(found, int32(at))
			at++
		} else {
			missing = append(missing, int32(i))
		}
	}
	return found, missing
}

// near is how far around its expected place a key is looked for first. The places of a few
// hundred hashed ids hardly ever deviate by more.
const near = 16

// searchFrom returns the first place at or after from whose key is not below k, and whether it
// is k. It starts where k would be if the keys were evenly spread, as hashed ids are, and
// continues with a binary search whose step is a conditional move, so that the processor
// mispredicts no branch.
func searchFrom(keys []uint64, from int, k uint64) (int, bool) {
	last := len(keys) - 1
	switch {
	case from > last || keys[last] < k:
		return len(keys), false
	case keys[from] >= k:
		return from, keys[from] == k
	}
	low, high := from, last // keys[low] < k <= keys[high]
	span := float64(keys[last] - keys[from])
	// Interpolation. Both ends of the range [guess-near, guess+near] are checked, so that a
	// wrong guess costs two comparisons and no more.
	guess := from + int(float64(k-keys[from])/span*float64(last-from))
	if at := guess + near; at < high && keys[at] >= k {
		high = at
	}
	if at := guess - near; at > low && at < high && keys[at] < k {
		low = at
	}
	for n := high - low; n > 1; { // keys[low] < k <= keys[low+n]
		half := n / 2
		if keys[low+half] < k {
			low += half
		}
		n -= half
	}
	return low + 1, keys[low+1] == k
}

// addCounts adds the batch's amounts to the keys at the given places, or to all keys if places
// is nil. The key at places[i] is number from+at[i] of the batch, or from+i if at is nil. It
// returns the bytes by which the row grew. Totals are the caller's.
func (r *row) addCounts(l *leaf, places []int32, b *Batch, from int, at []int32) (grown int) {
	if b.sums != nil {
		n := len(places)
		if places == nil {
			n = l.n
		}
		each := eachOf{sums: b.sums[from:], places: places, at: at, n: n}
		for p := range Planes {
			grown += r.planes[p].addEach(l.n, &each, p)
		}
		return grown
	}
	for p, amount := range b.Each {
		if amount == 0 {
			continue
		}
		if places == nil {
			grown += r.planes[p].addAll(l.n, amount)
		} else {
			grown += r.planes[p].addAt(l.n, places, amount)
		}
	}
	if b.Lens == nil {
		return grown
	}
	// Amounts by key are added one at a time. The front has gathered most of them by key
	// before, so this is the exception.
	one := make([]int32, 1)
	count := len(places)
	if places == nil {
		count = l.n
	}
	for i := range count {
		one[0] = int32(i)
		if places != nil {
			one[0] = places[i]
		}
		number := i
		if at != nil {
			number = int(at[i])
		}
		grown += r.planes[b.LenPlane].addAt(l.n, one, b.lenBytes(from+number))
	}
	return grown
}
