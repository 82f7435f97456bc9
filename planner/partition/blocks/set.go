// This file has sets of machines as words of bits: machine i is bit i%64 of word i/64. There
// is one for each parameter.

package blocks

import (
	"iter"
	"math/bits"
)

// setWords returns the length of a set of k machines.
func setWords(k int) int { return (k + 63) / 64 }

// Members ranges over the machines in a set, ascending.
func Members(set []uint64) iter.Seq[int] {
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

// hasMember reports whether machine i is in a set.
func hasMember(set []uint64, i int) bool { return set[i>>6]>>(i&63)&1 != 0 }

// addMember puts machine i into a set.
func addMember(set []uint64, i int) { set[i>>6] |= 1 << (i & 63) }

// removeMember takes machine i out of a set.
func removeMember(set []uint64, i int) { set[i>>6] &^= 1 << (i & 63) }

// countMembers returns the number of machines in a set.
func countMembers(set []uint64) int {
	n := 0
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}
