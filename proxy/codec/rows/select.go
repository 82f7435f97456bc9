package rows

import "slices"

// fewest is the number of keys below which comparing all pairs is faster than partitioning.
const fewest = 8

// largest returns the k-th largest of keys, counted from 1. It is a quickselect whose
// partitioning has no branch that depends on the keys, since such branches are mispredicted
// half of the time. After 48 rounds, which takes an adversarial order, it sorts what is
// left, so that the worst case is n log n. It overwrites keys and room, which has the same
// length.
func largest[K uint32 | uint64](keys, room []K, k int) K {
	for rounds := 0; len(keys) > fewest; rounds++ {
		if rounds > 48 {
			slices.Sort(keys)
			return keys[len(keys)-k]
		}
		pivot := median(keys[0], keys[len(keys)/2], keys[len(keys)-1])
		above := part(keys, room, pivot)
		if k <= above {
			keys, room = room[:above], keys[:above]
			continue
		}
		keys, room, k = room[above:len(keys)], keys[:len(keys)-above], k-above
		if above > 0 {
			continue
		}
		// No key is above the pivot, so it is the largest, perhaps with copies.
		// Partitioning at the next smaller number separates these from the rest.
		same := len(keys) - part(keys, room, pivot-1)
		if same = len(keys) - same; k <= same {
			return pivot
		}
		keys, room, k = room[same:len(keys)], keys[:len(keys)-same], k-same
	}
	return ranked(keys, k)
}

// ranked is largest for few keys: it compares each with all, again without a branch that
// depends on them except for the last.
func ranked[K uint32 | uint64](keys []K, k int) K {
	for _, key := range keys {
		above, same := 0, 0
		for _, other := range keys {
			is := 0
			if other > key {
				is = 1
			}
			above += is
			is = 0
			if other == key {
				is = 1
			}
			same += is
		}
		if above < k && k <= above+same {
			return key
		}
	}
	return 0 // k is not from 1 to as many as there are keys
}

// part copies keys into room, those above the pivot first and the others behind, and
// returns how many are above. Each key is written to both ends; the one that is wrong is
// overwritten later.
func part[K uint32 | uint64](keys, room []K, pivot K) (above int) {
	room = room[:len(keys)]
	last := len(keys) - 1
	for i, key := range keys {
		room[above] = key
		room[last-i+above] = key
		is := 0
		if key > pivot {
			is = 1
		}
		above += is
	}
	return above
}

func median[K uint32 | uint64](a, b, c K) K {
	return max(min(a, b), min(max(a, b), c))
}
