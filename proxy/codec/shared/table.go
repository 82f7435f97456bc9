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
	width  int // bytes of a value
	shift  int // 64 less the number of bits of a set's index
	sets   []set
	values []byte // of all ways, a set's beside each other; none if they have 4 bytes
	loaded uint64 // what touch has read, so that it reads it
}

// A set fills a cache line: between two answers the job and its proxies do something else, so that
// each access to a table misses the cache.
type set struct {
	keys [ways]uint64
	// Two of 4 bytes in each, where values have as many.
	values [ways / 2]uint64
	next   uint64 // modulo ways, the way that the next new key overwrites
	_      uint64
}

const (
	ways = 4
	// maxWidth and maxSetBits bound a table, which has two sets or more.
	maxWidth   = 4 << 10
	maxSetBits = 26
	maxTables  = 8
	touched    = 8 // times 8 keys are read ahead
)

// tableSize returns how many bytes a table takes.
func tableSize(width, setBits int) int {
	if width == 4 {
		return 64 << setBits
	}
	return (64 + ways*width) << setBits
}

func newTable(width, setBits int) *table {
	t := &table{width: width, shift: 64 - setBits, sets: make([]set, 1<<setBits)}
	if width != 4 {
		t.values = make([]byte, ways*width<<setBits)
	}
	return t
}

// setBitsFor returns the size of a table that has room for so many keys, or up to twice as many. Of
// keys that several processes use there are fewer.
func setBitsFor(keys int) int { return max(bits.Len(uint((keys-1)/ways)), 1) }

// size is what tableSize was of.
func (t *table) size() int { return 64*len(t.sets) + len(t.values) }

// slots is how many keys it holds.
func (t *table) slots() int { return ways * len(t.sets) }

// clear makes it a new table.
func (t *table) clear() {
	clear(t.sets)
	clear(t.values)
}

// slot returns where a key's value is: its set, the set's number, and the way. A key that is not
// there takes the place of another, whose value is still in it. There are no branches that depend
// on the key: which keys are known is as good as random, and a mispredicted branch takes longer
// than everything else here.
func (t *table) slot(key uint64) (in *set, at, way int, isNew uint8) {
	at = int(key * 0x9E3779B97F4A7C15 >> (t.shift & 63)) // Fibonacci hashing
	in = &t.sets[at]
	next := in.next % ways
	found := bit(in.keys[0] == key) | bit(in.keys[1] == key)<<1 | bit(in.keys[2] == key)<<2 | bit(in.keys[3] == key)<<3
	isNew = bit(found == 0)
	way = bits.TrailingZeros8(found|isNew<<next) % ways
	in.keys[way] = key
	in.next = next + uint64(bit(way == int(next))) // what has just been used is not overwritten next
	return in, at, way, isNew
}

// touch reads the sets of the next 8*touched keys, all at once, before they are needed one by one.
func (t *table) touch(keys []byte) {
	var sum uint64
	for keys = keys[:min(8*8*touched, len(keys))]; len(keys) >= 8; keys = keys[8:] {
		sum ^= t.sets[binary.LittleEndian.Uint64(keys)*0x9E3779B97F4A7C15>>(t.shift&63)].next
	}
	t.loaded ^= sum
}

// value returns the place of a way's value.
func (t *table) value(at, way int) []byte {
	at = (at*ways + way) * t.width
	return t.values[at : at+t.width]
}

// swap4 puts a value of 4 bytes in, and returns the one before.
func (s *set) swap4(way int, v uint32) (before uint32) {
	word, shift := &s.values[way/2], uint(way%2)*32
	before = uint32(*word >> (shift & 63))
	*word ^= uint64(before^v) << (shift & 63)
	return before
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
// known, and how many keys were not in the table. keys is the body of a keys frame, and values has
// width bytes for each.
func (t *table) appendFresh(known, fresh, keys, values []byte) (_, _ []byte, count, newKeys int) {
	if t.width == 4 {
		return t.appendFresh4(known, fresh, keys, values)
	}
	w := t.width
	for len(keys) > 0 {
		n := min(len(keys)/8, 8)
		if len(known)%touched == 0 {
			t.touch(keys)
		}
		var byKey byte
		for i := range n {
			_, at, way, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
			newKeys += int(isNew)
			v, have := values[i*w:(i+1)*w], t.value(at, way)
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
		if len(known)%touched == 0 {
			t.touch(keys)
		}
		var byKey byte
		for i := range n {
			in, _, way, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
			newKeys += int(isNew)
			v := binary.LittleEndian.Uint32(values[4*i:])
			same := bit(v == in.swap4(way, v)) &^ isNew
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
		if i%(8*touched) == 0 {
			t.touch(keys[8*i:])
		}
		_, at, way, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
		v, have := values[i*w:(i+1)*w], t.value(at, way)
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
		if i%(8*touched) == 0 {
			t.touch(keys[8*i:])
		}
		in, _, way, isNew := t.slot(binary.LittleEndian.Uint64(keys[8*i:]))
		knows := known[i/8] >> (i % 8) & 1
		a := binary.LittleEndian.Uint32(fresh[min(at, last):])
		b := in.swap4(way, a)
		v := a ^ (a^b)&-uint32(knows)
		in.swap4(way, v)
		wrong |= isNew & knows
		binary.LittleEndian.PutUint32(values[4*i:], v)
		at += 4 * int(1-knows)
	}
	if wrong != 0 {
		return errUnknown
	}
	return nil
}

var errUnknown = corrupt("a value that the other end knows of a key that was never sent")
