package counts

import "slices"

// leafKeys is how many keys a leaf holds at most; a fuller one is cut in two.
const leafKeys = 512

// A leaf covers the keys from first up to the next leaf's first. It knows keys
// one by one; a folded leaf knows only its hottest keys so, and what else it
// was asked for is in its totals and in the table's sketch.
type leaf struct {
	first uint64
	n     int      // keys known one by one
	keys  []uint64 // them, ascending; nil where they are base, base+step, ...
	base  uint64
	step  uint64
	rows  []*row // by worker, nil for one that never came here; may be short

	folded *folded
}

// A row is one worker's share of a leaf.
type row struct {
	total  [Planes]uint64 // of all keys, also those that are not known one by one
	planes [allPlanes]plane
}

// folded is what a leaf knows about the keys that it does not know one by one.
type folded struct {
	distinct  registers // how many there are
	accesses  uint64    // of all workers, while folded
	threshold uint64    // estimate of accesses from which a key is promoted
}

const (
	leafBytes   = 112
	rowBytes    = 8 + 8*Planes + allPlanes*32
	foldedBytes = registerCount + 16
)

// bytes returns the memory that the leaf takes.
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

func (l *leaf) key(i int) uint64 {
	if l.keys == nil {
		return l.base + uint64(i)*l.step
	}
	return l.keys[i]
}

// row returns the worker's row, made if need be, and the bytes that took.
func (l *leaf) row(worker int) (r *row, grown int) {
	if worker >= len(l.rows) {
		grown = 8 * (worker + 1 - len(l.rows))
		l.rows = append(l.rows, make([]*row, worker+1-len(l.rows))...)
	}
	if l.rows[worker] == nil {
		l.rows[worker] = new(row)
		grown += rowBytes
	}
	return l.rows[worker], grown
}

// accesses returns the pulls and pushes of all workers.
func (l *leaf) accesses() uint64 {
	sum := uint64(0)
	for _, r := range l.rows {
		if r != nil {
			sum += r.total[Pulls] + r.total[Pushes]
		}
	}
	return sum
}

// accessesAt returns the pulls and pushes of key i by all workers, with the
// estimate of those before it was promoted.
func (l *leaf) accessesAt(i int) uint64 {
	sum := uint64(0)
	for _, r := range l.rows {
		if r != nil {
			sum += r.planes[Pulls].at(i) + r.planes[Pushes].at(i) + r.planes[Earlier].at(i)
		}
	}
	return sum
}

// distinct returns how many keys the leaf was asked for: exact unless folded.
func (l *leaf) distinct() uint64 {
	if l.folded == nil {
		return uint64(l.n)
	}
	return uint64(l.n) + l.folded.distinct.estimate()
}

// isWhole reports whether keys are exactly the leaf's, so that no place needs
// to be looked up.
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
		return true // ascending, so many, from there to there
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

// mergeFrom is the share of a leaf's keys, one in this many, from which walking
// along them beats searching for each.
const mergeFrom = 12

// find appends to found the places of those of keys that the leaf knows, and
// to missing the indices in keys of the others. Keys ascend.
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

// near is how far from where it would be a key is looked for first: hashed ids, some
// hundred of them, are hardly ever farther.
const near = 16

// searchFrom returns the first place at or after from whose key is not below k, and
// whether it is k. It starts where k would be if the keys were evenly spread, as
// hashed ids are, and continues with a binary search without branches, so that the
// processor mispredicts none.
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

// addCounts adds to the keys at the given places (all of them where places is nil)
// what the batch brings, the key at places[i] being number from+at[i] of the
// batch, or from+i where at is nil. It returns the bytes by which it grew.
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
