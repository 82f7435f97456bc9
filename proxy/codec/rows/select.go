package rows

import "slices"

// fewest is the number of keys below which sorting them is faster than parting.
const fewest = 12

// largest returns the k-th largest of keys, from 1 on, and reorders them: Hoare's
// selection, which sorts what is left where it does not get ahead.
func largest[K uint32 | uint64](keys []K, k int) K {
	for rounds := 0; len(keys) > fewest; rounds++ {
		if rounds > 48 {
			slices.Sort(keys)
			return keys[len(keys)-k]
		}
		pivot := median(keys[0], keys[len(keys)/2], keys[len(keys)-1])
		i, j := 0, len(keys)-1
		for i <= j { // larger ones to the left
			for keys[i] > pivot {
				i++
			}
			for keys[j] < pivot {
				j--
			}
			if i <= j {
				keys[i], keys[j] = keys[j], keys[i]
				i++
				j--
			}
		}
		switch {
		case k <= j+1:
			keys = keys[:j+1]
		case k > i:
			keys, k = keys[i:], k-i
		default:
			return pivot
		}
	}
	for i := 1; i < len(keys); i++ {
		for j := i; j > 0 && keys[j] > keys[j-1]; j-- {
			keys[j], keys[j-1] = keys[j-1], keys[j]
		}
	}
	return keys[k-1]
}

func median[K uint32 | uint64](a, b, c K) K {
	return max(min(a, b), min(max(a, b), c))
}
