package shared

import (
	"bytes"
	"encoding/binary"
	"math/bits"
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
	next   []uint8  // for each set the way that the next new key overwrites
}

const (
	ways = 4
	// maxWidth and maxSetBits bound a table. The memory granted is a closer bound.
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

// setBitsFor returns the size of a table that has room for four times as many keys.
func setBitsFor(keys int) int { return bits.Len(uint(max(4*keys/ways, 1) - 1)) }

// size is what tableSize was of.
func (t *table) size() int { return 8*len(t.keys) + len(t.values) + len(t.next) }

// slots is how many keys it holds.
func (t *table) slots() int { return len(t.keys) }

// slot returns where a key's value is. A key that is not there takes the place of another, whose
// value is still in it.
func (t *table) slot(key uint64) (at int, isNew bool) {
	set := int(key * 0x9E3779B97F4A7C15 >> t.shift) // Fibonacci hashing; a shift of 64 yields 0
	first := set * ways
	in := (*[ways]uint64)(t.keys[first:])
	for i := range in {
		if in[i] == key {
			return first + i, false
		}
	}
	way := t.next[set]
	t.next[set] = (way + 1) % ways
	in[way] = key
	return first + int(way), true
}

// appendFresh appends to known a bit for each key, set if the table has its value, the lowest bit
// first, and to fresh the other values, which the table has from now on. It returns how many were
// known. keys is the body of a keys frame, and values has width bytes for each.
func (t *table) appendFresh(known, fresh, keys, values []byte) (_, _ []byte, count int) {
	w := t.width
	for len(keys) > 0 {
		n := min(len(keys)/8, 8)
		var byKey byte
		for i := range n {
			at, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
			v, have := values[i*w:(i+1)*w], t.values[at*w:(at+1)*w]
			if w == 4 { // as most, and a call costs more than this
				a, b := binary.LittleEndian.Uint32(v), binary.LittleEndian.Uint32(have)
				if !isNew && a == b {
					byKey |= 1 << i
					continue
				}
				binary.LittleEndian.PutUint32(have, a)
				fresh = binary.LittleEndian.AppendUint32(fresh, a)
				continue
			}
			if !isNew && bytes.Equal(v, have) {
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
	return known, fresh, count
}

// fill is the reverse of appendFresh: it fills values with those of keys. fresh must have the values
// of all keys that are not known. A key that is said to be known but is not is an error.
func (t *table) fill(values, known, fresh, keys []byte) error {
	w := t.width
	for i := range len(keys) / 8 {
		key := binary.LittleEndian.Uint64(keys[8*i:])
		at, isNew := t.slot(key)
		v, have := values[i*w:(i+1)*w], t.values[at*w:(at+1)*w]
		switch {
		case known[i/8]>>(i%8)&1 == 0:
			copy(v, fresh[:w])
			copy(have, fresh)
			fresh = fresh[w:]
		case isNew:
			return corrupt("the value of key %d is not in the table", key)
		default:
			copy(v, have)
		}
	}
	return nil
}
