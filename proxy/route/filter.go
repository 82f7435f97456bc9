package route

import "math/bits"

// filter is a Bloom filter that says of most keys which are not in a set that
// they are not, with one word of memory: two bits of it are set for each key
// that is.
type filter struct {
	words []uint64
	shift uint // of a hash, to the place of its word
	stale int  // keys that were taken out of the set since it was made
}

// filterKeys is for how many keys a word is at most: one key in thirty that is
// not in the set passes then.
const filterKeys = 6

// newFilter returns an empty filter with room for n keys.
func newFilter(keys int) filter {
	size := uint(max(1, bits.Len(uint(keys/filterKeys))))
	return filter{words: make([]uint64, 1<<size), shift: 64 - size}
}

// filterBits are the bits of a word that a key with that hash has.
func filterBits(h uint64) uint64 { return 1<<(h&63) | 1<<(h>>6&63) }

func (f *filter) has(h uint64) bool {
	want := filterBits(h)
	return f.words[h>>(f.shift&63)]&want == want
}

func (f *filter) mark(h uint64) { f.words[h>>(f.shift&63)] |= filterBits(h) }

// noteKey adds a key to the filter of a set that now has that many keys, and
// reports false where a new filter is due.
func (f *filter) noteKey(h uint64, keys int) bool {
	if keys+f.stale > filterKeys*len(f.words) {
		return false
	}
	f.mark(h)
	return true
}

// remove records that the set has lost a key and now has that many, and reports
// false where a new filter is due: a filter cannot forget a key, so false positives
// accumulate.
func (f *filter) remove(keys int) bool {
	f.stale++
	return f.stale < 64 || f.stale <= keys
}
