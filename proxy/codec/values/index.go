package values

import (
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// index gives keys places, one behind the other in the order in which they first come.
// It is an open-addressing table with linear probing: looking up a key costs a
// multiplication and a cache miss. Keys are never removed; an owner that has to make
// room starts with a new index. It is guarded by its owner's lock, for look-ups too.
//
// Lists of keys ascend and mostly come again, whole or in part. So a key of a list is
// compared with the one that has the place after that of the key before it, which costs
// neither.
type index struct {
	cells  []cell // a power of two, at most 5/8 in use
	used   int
	values int // of all keys together: the place of the next one
	// The keys in the order of their places, as long as all have width values, at least one;
	// then nil.
	order []uint64
	width int
	next  int // the number, in order, of the key after the last one that was found there
}

// cell is empty if place is 0; otherwise the values of its key begin at place - 1. So a
// zeroed table is empty, and key 0 is a key like others.
type cell struct {
	key   uint64
	place uint32
	width uint32 // and pulledBit
}

// pulledBit is set in a cell's width, in the index of copies, once the worker has the
// copy's values. Files of earlier versions have it in entries.
const pulledBit = 1 << 31

func (c *cell) size() int    { return int(c.width &^ pulledBit) }
func (c *cell) pulled() bool { return c.width&pulledBit != 0 }

const (
	firstCells = 64
	// cellBytes is what a key counts for in memory, and about the most that it takes: 51 bytes
	// right after the cells were doubled, and 10 in the order. It is part of the format of
	// parts by key.
	cellBytes = 64
)

func newIndex() *index { return &index{cells: make([]cell, firstCells)} }

// at returns the cell of a key, or the empty one where it belongs.
func (x *index) at(key uint64) *cell { return &x.cells[x.cellOf(key)] }

// cellOf returns the number of the cell that at returns. It holds until a key is added.
func (x *index) cellOf(key uint64) uint64 {
	// Fibonacci hashing: the upper bits of the product are those that depend on all
	// bits of the key.
	mask := uint64(len(x.cells) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> (64 - uint(bits.TrailingZeros(uint(len(x.cells))))); ; i++ {
		if c := &x.cells[i&mask]; c.place == 0 || c.key == key {
			return i & mask
		}
	}
}

// find returns where a key's values begin and how many there are; a width of 0 if it
// has no place.
func (x *index) find(key uint64) (from uint32, width int) {
	c := x.at(key)
	return c.place - 1, c.size()
}

// add gives a key with width values the next place, if it has none.
func (x *index) add(key uint64, width int) {
	c := x.at(key)
	if c.place != 0 {
		return
	}
	// Doubling moves the cells, not the places: values stay where they are.
	if 8*(x.used+1) > 5*len(x.cells) {
		old := x.cells
		x.cells = make([]cell, 2*len(old))
		for _, c := range old {
			if c.place != 0 {
				*x.at(c.key) = c
			}
		}
		c = x.at(key)
	}
	*c = cell{key, uint32(x.values) + 1, uint32(width)}
	if x.used == 0 {
		x.width = width
	}
	if x.used == len(x.order) && width == x.width && width > 0 {
		x.order = append(x.order, key)
	} else {
		x.order = nil
	}
	x.used++
	x.values += width
}

// locate appends the places of a piece's keys, as in their cells: counted from 1, 0 for
// keys that have none. It counts the keys without a place and their values, and reports
// whether the others have as many values as before.
func (x *index) locate(at []uint32, keys pslite.Keys, p *piece) (places []uint32, missing, values int, same bool) {
	same = true
	at = slices.Grow(at, p.keys)
	// A list that has hardly any runs in order is compared only now and then.
	for i, alone := 0, 0; i < p.keys; i++ {
		if alone < 8 || i%64 == 0 {
			n := x.matchRun(keys[8*(p.first+i):8*(p.first+p.keys)], p)
			for k := x.next - n; k < x.next; k++ {
				at = append(at, uint32(k*x.width)+1)
			}
			if i += n; i == p.keys {
				break
			}
			if alone++; n >= 8 {
				alone = 0
			}
		}
		width := p.widthOf(i)
		c := x.at(keys.At(p.first + i))
		if alone < 8 || i%64 == 63 {
			x.continueAt(c)
		}
		at = append(at, c.place)
		switch {
		case c.place == 0:
			missing++
			values += width
		case c.size() != width:
			same = false
		}
	}
	return at, missing, values, same
}

// matchRun passes over the keys that are next in order, as far as they are those of a piece
// and have as many values there, and returns how many they are.
func (x *index) matchRun(keys pslite.Keys, p *piece) (n int) {
	if p.lens != nil || p.width != x.width || x.next >= len(x.order) {
		return 0
	}
	next := x.order[x.next:]
	for n < min(len(next), keys.Len()) && keys.At(n) == next[n] {
		n++
	}
	x.next += n
	return n
}

// continueAt has the keys after the one of a cell, if it has a place, compared next.
func (x *index) continueAt(c *cell) {
	switch {
	case c.place == 0 || x.order == nil:
	case x.width == 1: // saves the division in the usual case
		x.next = int(c.place)
	default:
		x.next = int(c.place-1)/x.width + 1
	}
}

// cellsOf is [index.locate] with the numbers of the keys' cells, see cellOf, in place of
// their places.
func (x *index) cellsOf(cells []uint32, keys pslite.Keys, p *piece) (numbers []uint32, missing, values int, same bool) {
	same = true
	cells = slices.Grow(cells, p.keys)
	for i := range p.keys {
		width, n := p.widthOf(i), x.cellOf(keys.At(p.first+i))
		cells = append(cells, uint32(n))
		switch c := &x.cells[n]; {
		case c.place == 0:
			missing++
			values += width
		case c.size() != width:
			same = false
		}
	}
	return cells, missing, values, same
}

// positions appends the position of each value of a piece's keys, which have these
// places.
func (p *piece) positions(at, places []uint32) []uint32 {
	if p.lens == nil && p.width == 1 {
		at = slices.Grow(at, len(places))
		for _, place := range places {
			at = append(at, place-1)
		}
		return at
	}
	for i, place := range places {
		for j := range uint32(p.widthOf(i)) {
			at = append(at, place-1+j)
		}
	}
	return at
}

// bytes is the memory that the index counts for.
func (x *index) bytes() int { return x.used * cellBytes }
