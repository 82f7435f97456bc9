package shared

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// A table holds the values of keys that went over a lane last, a value for each key. Both ends
// have the same: they change it in the order of the lane, by the same keys and values.
//
// It is a cache of sets with a few ways each. A new table has the value 0 for key 0 in all ways,
// which is as good as any other content that both ends have.
type table struct {
	width  int      // bytes of a value
	shift  int      // 64 less the number of bits of a set's index
	keys   []uint64 // a set's are neighbours
	values []byte   // likewise
	next   []uint8  // for each set, modulo ways, the way that the next new key overwrites
}

const (
	ways = 4
	// maxWidth and maxSetBits bound a table, which has two sets or more. The memory granted is a closer bound.
	maxWidth   = 4 << 10
	maxSetBits = 28
	maxTables  = 8
)

// tableSize returns how many bytes a table takes.
func tableSize(width, setBits int) int { return (ways*(8+width) + 1) << setBits }

func newTable(width, setBits int) *table {
	return &table{
		width: width, shift: 64 - setBits,
		keys: make([]uint64, ways<<setBits), values: make([]byte, ways*width<<setBits), next: make([]uint8, 1<<setBits),
	}
}

// setBitsFor returns the size of a table that has room for so many keys, or up to twice as many. Of
// keys that several processes use there are fewer.
func setBitsFor(keys int) int { return max(bits.Len(uint((keys-1)/ways)), 1) }

// size is what tableSize was of.
func (t *table) size() int { return 8*len(t.keys) + len(t.values) + len(t.next) }

// slots is how many keys it holds.
func (t *table) slots() int { return len(t.keys) }

// slot returns where a key's value is. A key that is not there takes the place of another, whose
// value is still in it. There are no branches that depend on the key: which keys are known is as
// good as random, and a mispredicted branch takes longer than everything else here.
func (t *table) slot(key uint64) (at int, isNew uint8) {
	set := int(key * 0x9E3779B97F4A7C15 >> (t.shift & 63)) // Fibonacci hashing
	in := (*[ways]uint64)(t.keys[set*ways:])
	next := t.next[set] % ways
	found := bit(in[0] == key) | bit(in[1] == key)<<1 | bit(in[2] == key)<<2 | bit(in[3] == key)<<3
	isNew = bit(found == 0)
	way := bits.TrailingZeros8(found | isNew<<next)
	in[way%ways] = key
	t.next[set] = next + bit(way == int(next)) // what has just been used is not overwritten next
	return set*ways + way, isNew
}

// bit is 1 for true; the compiler makes no branch of it.
func bit(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}

// appendFresh appends to known a bit for each key, set if the table has its value, the lowest bit
// first, and to fresh the other values, which the table has from now on. It returns how many were
// known, and how many keys were not in the table. keys is the body of a keys frame, and values has width bytes for each.
func (t *table) appendFresh(known, fresh, keys, values []byte) (_, _ []byte, count, newKeys int) {
	if t.width == 4 {
		return t.appendFresh4(known, fresh, keys, values)
	}
	w := t.width
	for len(keys) > 0 {
		n := min(len(keys)/8, 8)
		var byKey byte
		for i := range n {
			at, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
			newKeys += int(isNew)
			v, have := values[i*w:(i+1)*w], t.values[at*w:(at+1)*w]
			if isNew == 0 && bytes.Equal(v, have) {
				byKey |= 1 << i
				continue
			}
			copy(have, v)
			fresh = append(fresh, v...)
		}
		known = append(known, byKey)
		count += bits.OnesCount8(byKey)
		keys, values = keys[8*n:], values[w*n:]
	}
	return known, fresh, count, newKeys
}

// appendFresh4 is appendFresh for values of 4 bytes, as most are.
func (t *table) appendFresh4(known, fresh, keys, values []byte) (_, _ []byte, count, newKeys int) {
	at := len(fresh)
	fresh = slices.Grow(fresh, len(values))[:at+len(values)]
	for len(keys) > 0 {
		n := min(len(keys)/8, 8)
		var byKey byte
		for i := range n {
			slot, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
			v, have := binary.LittleEndian.Uint32(values[4*i:]), t.values[4*slot:4*slot+4]
			newKeys += int(isNew)
			same := bit(v == binary.LittleEndian.Uint32(have)) &^ isNew
			binary.LittleEndian.PutUint32(have, v)
			// The next one overwrites it if it is known.
			binary.LittleEndian.PutUint32(fresh[at:], v)
			at += 4 * int(1-same)
			byKey |= same << i
		}
		known = append(known, byKey)
		count += bits.OnesCount8(byKey)
		keys, values = keys[8*n:], values[4*n:]
	}
	return known, fresh[:at], count, newKeys
}

// fill is the reverse of appendFresh: it fills values with those of keys. fresh must have the values
// of all keys that are not known. A key that is said to be known but is not is an error.
func (t *table) fill(values, known, fresh, keys []byte) error {
	if t.width == 4 {
		return t.fill4(values, known, fresh, keys)
	}
	w := t.width
	for i := range len(keys) / 8 {
		at, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
		v, have := values[i*w:(i+1)*w], t.values[at*w:(at+1)*w]
		switch {
		case known[i/8]>>(i%8)&1 == 0:
			copy(v, fresh[:w])
			copy(have, fresh)
			fresh = fresh[w:]
		case isNew == 1:
			return errUnknown
		default:
			copy(v, have)
		}
	}
	return nil
}

// fill4 is fill for values of 4 bytes.
func (t *table) fill4(values, known, fresh, keys []byte) error {
	var none [4]byte
	if len(fresh) == 0 {
		fresh = none[:] // of which nothing is used
	}
	at, last, wrong := 0, len(fresh)-4, uint8(0)
	for i := range len(keys) / 8 {
		slot, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
		have := t.values[4*slot : 4*slot+4]
		knows := known[i/8] >> (i % 8) & 1
		a, b := binary.LittleEndian.Uint32(fresh[min(at, last):]), binary.LittleEndian.Uint32(have)
		v := a ^ (a^b)&-uint32(knows)
		wrong |= isNew & knows
		binary.LittleEndian.PutUint32(have, v)
		binary.LittleEndian.PutUint32(values[4*i:], v)
		at += 4 * int(1-knows)
	}
	if wrong != 0 {
		return errUnknown
	}
	return nil
}

var errUnknown = corrupt("a value that the other end knows of a key that was never sent")
