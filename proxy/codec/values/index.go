package values

import (
	"math/bits"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// index numbers keys in the order in which they come. Looking one up costs a
// multiplication and a cache miss.
type index struct {
	cells []cell // a power of two
	used  int
}

// cell is empty with number 0; otherwise its key's number is one less.
type cell struct {
	key    uint64
	number int32
}

const (
	firstCells = 64
	// cellBytes is what a key costs: an index is at most half full, and at
	// least a quarter once it has grown.
	cellBytes = 4 * 16
)

func newIndex() *index { return &index{cells: make([]cell, firstCells)} }

// at returns where key is, or where it belongs.
func (x *index) at(key uint64) *cell {
	mask := uint64(len(x.cells) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> (64 - uint(bits.TrailingZeros(uint(len(x.cells))))); ; i++ {
		if c := &x.cells[i&mask]; c.number == 0 || c.key == key {
			return c
		}
	}
}

// number returns a key's number; false where it has none.
func (x *index) number(key uint64) (int, bool) {
	n := x.at(key).number
	return int(n) - 1, n > 0
}

// add numbers a key that has no number yet.
func (x *index) add(key uint64) {
	c := x.at(key)
	if c.number != 0 {
		return
	}
	if 2*(x.used+1) > len(x.cells) {
		old := x.cells
		x.cells = make([]cell, 2*len(old))
		for _, c := range old {
			if c.number != 0 {
				*x.at(c.key) = c
			}
		}
		c = x.at(key)
	}
	x.used++
	*c = cell{key, int32(x.used)}
}

// missing counts those of n keys from first on that have no number.
func (x *index) missing(keys pslite.Keys, first, n int) int {
	count := 0
	for i := first; i < first+n; i++ {
		if x.at(keys.At(i)).number == 0 {
			count++
		}
	}
	return count
}

// positions appends where the values of a piece's keys are, which all have
// numbers: width positions for each key.
func (x *index) positions(at []uint32, keys pslite.Keys, p *piece) []uint32 {
	for i := p.first; i < p.first+p.keys; i++ {
		from := uint32(x.at(keys.At(i)).number-1) * uint32(p.width)
		for j := range uint32(p.width) {
			at = append(at, from+j)
		}
	}
	return at
}

// bytes is what the index takes.
func (x *index) bytes() int { return x.used * cellBytes }
