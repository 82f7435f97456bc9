// This part numbers keys in the order in which they first appear. The server's store
// and the workers' record of accesses keep their columns by these numbers. It is an
// open-addressing table made for long sorted key lists: a look-up touches one cache
// line as a rule and allocates nothing.

package kv

import "math/bits"

// A StoreIndex is not safe for concurrent use. The zero StoreIndex is empty. Keys are
// never removed, so that numbers are dense and stay what they are; the table is at
// most three quarters full.
type StoreIndex struct {
	keys  []uint64 // by number
	table []uint32 // 1 + number, 0 where empty; the length is a power of two
	shift int      // 64 - log2(len(table))
}

// Len returns how many keys have a number.
func (x *StoreIndex) Len() int { return len(x.keys) }

// Keys returns the keys by number. They belong to the index.
func (x *StoreIndex) Keys() []uint64 { return x.keys }

// Find returns the number of a key; false if it has none.
func (x *StoreIndex) Find(key uint64) (number uint32, ok bool) {
	if len(x.table) == 0 {
		return 0, false
	}
	mask := uint32(len(x.table) - 1)
	for at := x.home(key); ; at = (at + 1) & mask {
		switch n := x.table[at]; {
		case n == 0:
			return 0, false
		case x.keys[n-1] == key:
			return n - 1, true
		}
	}
}

// Number returns the number of a key and gives it the next one if it has none.
func (x *StoreIndex) Number(key uint64) uint32 {
	if 4*(len(x.keys)+1) > 3*len(x.table) {
		x.grow()
	}
	mask := uint32(len(x.table) - 1)
	for at := x.home(key); ; at = (at + 1) & mask {
		n := x.table[at]
		if n == 0 {
			x.keys = append(x.keys, key)
			x.table[at] = uint32(len(x.keys))
			return uint32(len(x.keys) - 1)
		}
		if x.keys[n-1] == key {
			return n - 1
		}
	}
}

// Numbers sets dst[i] to the number of keys[i]; dst is as long as keys. Lists that
// come again in the same order, as those of dense layers do, are found by comparing
// neighbours, without the table.
func (x *StoreIndex) Numbers(keys []uint64, dst []uint32) {
	next := uint32(0) // the number after the last key's
	for i, key := range keys {
		if int(next) < len(x.keys) && x.keys[next] == key {
			dst[i] = next
		} else {
			dst[i] = x.Number(key)
		}
		next = dst[i] + 1
	}
}

// home returns where the search for a key begins. Both halves of the product are
// mixed, so that keys that differ only in upper or only in lower bits spread alike.
func (x *StoreIndex) home(key uint64) uint32 {
	hi, lo := bits.Mul64(key^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return uint32((hi ^ lo) >> x.shift)
}

// grow doubles the table. The keys themselves stay where they are, only their numbers
// move.
func (x *StoreIndex) grow() {
	size := max(16, 2*len(x.table))
	x.table = make([]uint32, size)
	x.shift = 64 - bits.TrailingZeros(uint(size))
	mask := uint32(size - 1)
	for n, key := range x.keys {
		at := x.home(key)
		for x.table[at] != 0 {
			at = (at + 1) & mask
		}
		x.table[at] = uint32(n + 1)
	}
}
