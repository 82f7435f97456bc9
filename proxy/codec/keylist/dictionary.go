package keylist

import "slices"

// A dictionary gives positions to the keys that a link has seen: their rank among its keys.
// Hashed keys lie far apart and their differences do not pack; their ranks lie as close
// together as the list is dense among the keys in use.
//
// New keys wait until there are many of them, and are then merged in one pass, so that each
// key is moved a bounded number of times on average. Ranks count merged keys only. Both
// ends merge after the same list, since both learn the same keys in the same order.
type dictionary struct {
	limit   int
	keys    []uint64 // ascending
	waiting []uint64 // as they came, some of them perhaps twice
	merged  []uint64 // room for the next merge
}

// waitingShare: a quarter as many keys as are merged may wait.
const waitingShare = 4

// waitingLeast is how many keys may wait in any case.
const waitingLeast = 1024

// room reports whether n more keys may be learned.
func (d *dictionary) room(n int) bool { return len(d.keys)+len(d.waiting)+n <= d.limit }

// learnedBytes is what a key takes at most: among the keys, in the buffer for the next
// merge, and while it waits, in a slice that append grows.
const learnedBytes = 4 * keySize

// bytes is what all keys take.
func (d *dictionary) bytes() int { return (len(d.keys) + len(d.waiting)) * learnedBytes }

// learn adds the keys of a list to those that wait, and merges them once there are enough.
func (d *dictionary) learn(list []byte) {
	n := count(list)
	for i := range n {
		d.waiting = append(d.waiting, keyAt(list, i))
	}
	if len(d.waiting) >= max(waitingLeast, len(d.keys)/waitingShare) {
		d.merge()
	}
}

// merge sorts the waiting keys and merges them with the others. Keys that wait twice,
// or that the dictionary has already since another list brought them, are dropped.
func (d *dictionary) merge() {
	slices.Sort(d.waiting)
	fresh := slices.Compact(d.waiting)
	// The two arrays change places with each merge: the old keys are read from one and all
	// keys written to the other. seek finds runs of old keys between two new ones, which
	// are copied as a whole.
	out := slices.Grow(d.merged[:0], len(d.keys)+len(fresh))
	old := d.keys
	for _, key := range fresh {
		i := seek(old, key)
		out = append(out, old[:i]...)
		old = old[i:]
		if len(old) == 0 || old[0] != key {
			out = append(out, key)
		}
	}
	out = append(out, old...)
	d.keys, d.merged, d.waiting = out, d.keys, d.waiting[:0]
}

// reset forgets all keys.
func (d *dictionary) reset() {
	d.keys, d.merged, d.waiting = nil, nil, nil
}

// split appends the positions of those keys of an ascending list that the dictionary has to
// positions, and the other keys to others, both as lists.
func (d *dictionary) split(list, positions, others []byte) (_, _ []byte) {
	n := count(list)
	at := 0
	for i := range n {
		key := keyAt(list, i)
		at += seek(d.keys[at:], key)
		if at < len(d.keys) && d.keys[at] == key {
			positions = appendKey(positions, uint64(at))
			at++
		} else {
			others = appendKey(others, key)
		}
	}
	return positions, others
}

// hits returns how many of up to samples evenly spaced keys of a list the dictionary has,
// and how many it looked up.
func (d *dictionary) hits(list []byte, samples int) (hits, tried int) {
	n := count(list)
	tried = min(n, samples)
	for s := range tried {
		if _, ok := slices.BinarySearch(d.keys, keyAt(list, s*n/tried)); ok {
			hits++
		}
	}
	return hits, tried
}

// seek returns the index of the first of ascending keys that is not below key. It gallops:
// the answer is near the beginning as a rule, so it looks there first, in steps that
// double.
func seek(keys []uint64, key uint64) int {
	low, step := 0, 1
	for low+step <= len(keys) && keys[low+step-1] < key {
		low += step
		step *= 2
	}
	high := min(low+step-1, len(keys)) // keys[high] is not below, or is the end
	for low < high {
		middle := int(uint(low+high) / 2)
		if keys[middle] < key {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

func appendKey(list []byte, key uint64) []byte {
	n := len(list)
	list = extend(list, keySize)
	putKey(list[n:], 0, key)
	return list
}
