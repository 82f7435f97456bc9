package route

import "math/bits"

// filter is a blocked Bloom filter: all bits of a key are in one 64-bit word, so a lookup reads one
// word. Two bits are set for each key. There are no false negatives.
type filter struct {
	words []uint64
	shift uint // of a hash, to the index of its word
	stale int  // keys removed from the set since the filter was made, whose bits are still set
}

// filterKeys is the maximum number of keys per word. At that load one key in thirty that is not in
// the set passes.
const filterKeys = 6

// newFilter returns an empty filter with room for n keys.
func newFilter(keys int) filter {
	size := uint(max(1, bits.Len(uint(keys/filterKeys))))
	return filter{words: make([]uint64, 1<<size), shift: 64 - size}
}

// filterBits returns the bits of a key with that hash in its word. They come from the lowest twelve
// bits of the hash, the word's index from the highest, so the two are independent.
func filterBits(h uint64) uint64 { return 1<<(h&63) | 1<<(h>>6&63) }

func (f *filter) has(h uint64) bool {
	want := filterBits(h)
	return f.words[h>>(f.shift&63)]&want == want
}

func (f *filter) mark(h uint64) { f.words[h>>(f.shift&63)] |= filterBits(h) }

// noteKey adds a key to the filter of a set that now has that many keys. It returns false, and adds
// nothing, where the filter is full and a new one is due.
func (f *filter) noteKey(h uint64, keys int) bool {
	if keys+f.stale > filterKeys*len(f.words) {
		return false
	}
	f.mark(h)
	return true
}

// remove records that the set has lost a key and has that many left. It returns false where a new
// filter is due: a Bloom filter cannot forget a key, so false positives accumulate.
func (f *filter) remove(keys int) bool {
	f.stale++
	return f.stale < 64 || f.stale <= keys
}
