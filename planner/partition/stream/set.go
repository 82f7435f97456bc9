package stream

import (
	"iter"
	"math/bits"
)

// members ranges over the machines in a set, one bit each.
func members(set []uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range set {
			for ; word != 0; word &= word - 1 {
				if !yield(i*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

func has(set []uint64, i int) bool { return set[i>>6]>>(i&63)&1 != 0 }

func size(set []uint64) int {
	n := 0
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}
