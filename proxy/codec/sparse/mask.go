package sparse

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Mask is a set of positions of a vector: position i is bit i%64 of word i/64. Bits from
// the vector's length on are zero; whoever writes words directly has to see to it.
type Mask []uint64

// Words is the length of the mask of a vector of n numbers.
func Words(n int) int { return (n + 63) / 64 }

// Resized returns an empty mask for n numbers, in the memory of m if it suffices.
func (m Mask) Resized(n int) Mask {
	m = m.resized(n)
	clear(m)
	return m
}

// resized is Resized without clearing: the words may hold anything.
func (m Mask) resized(n int) Mask {
	return slices.Grow(m[:0], Words(n))[:Words(n)]
}

// Set adds position i.
func (m Mask) Set(i int) { m[i/64] |= 1 << (i % 64) }

// Has reports whether position i is in the set.
func (m Mask) Has(i int) bool { return m[i/64]>>(i%64)&1 != 0 }

// Count is the number of positions in the set.
func (m Mask) Count() int {
	n := 0
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// runs is the number of runs of successive positions. A bit begins a run if the bit before
// it, of the word before for bit 0, is clear.
func (m Mask) runs() int {
	n, before := 0, uint64(0)
	for _, w := range m {
		n += bits.OnesCount64(w &^ (w<<1 | before))
		before = w >> 63
	}
	return n
}

// complement inverts the first n positions and leaves the bits behind them zero.
func (m Mask) complement(n int) {
	for i := range m {
		m[i] = ^m[i]
	}
	if tail := n % 64; tail != 0 {
		m[len(m)-1] &= 1<<tail - 1
	}
}

// SetRun adds n positions from first on, a word at a time.
func (m Mask) SetRun(first, n int) {
	for n > 0 {
		part := min(n, 64-first%64)
		m[first/64] |= ^uint64(0) >> (64 - part) << (first % 64)
		first += part
		n -= part
	}
}

// CopyRun adds to m, from position first on, those of n positions that src has from
// position from on. The two need not be aligned to each other; a step ends where either
// word does.
func (m Mask) CopyRun(first int, src Mask, from, n int) {
	for n > 0 {
		part := min(n, 64-first%64, 64-from%64)
		bits := src[from/64] >> (from % 64) & (^uint64(0) >> (64 - part))
		m[first/64] |= bits << (first % 64)
		first, from, n = first+part, from+part, n-part
	}
}

// The scatter functions put values, one after the other, to the positions of the mask in
// dst, and leave the numbers between them. There is one for each size of number, since a
// copy of a length that is not constant costs more than the loop around it.
func (m Mask) scatter2(dst, values []byte) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 2
			binary.LittleEndian.PutUint16(dst[at:], binary.LittleEndian.Uint16(values))
			values = values[2:]
		}
	}
}

func (m Mask) scatter4(dst, values []byte) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 4
			binary.LittleEndian.PutUint32(dst[at:], binary.LittleEndian.Uint32(values))
			values = values[4:]
		}
	}
}

func (m Mask) scatter8(dst, values []byte) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 8
			binary.LittleEndian.PutUint64(dst[at:], binary.LittleEndian.Uint64(values))
			values = values[8:]
		}
	}
}

// The gather functions are the reverse: they append the numbers of src at the positions to
// dst.
func (m Mask) gather2(dst, src []byte) []byte {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 2
			dst = append(dst, src[at:at+2]...)
		}
	}
	return dst
}

// gatherDense4 is gather4 for masks with many positions, whose list nobody needs.
func (m Mask) gatherDense4(dst, src []byte) []byte {
	n := m.Count()
	dst = slices.Grow(dst, 4*n)
	to := dst[len(dst) : len(dst)+4*n]
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 4
			binary.LittleEndian.PutUint32(to, binary.LittleEndian.Uint32(src[at:]))
			to = to[4:]
		}
	}
	return dst[:len(dst)+4*n]
}

// gather4 appends the numbers at the positions to dst and the positions to at. It
// takes them in groups of four without checking whether a word has as many, which
// would be an unpredictable branch; surplus entries are overwritten by the next
// word's, and a count of the mask made the room beforehand.
func (m Mask) gather4(dst []byte, at []uint32, src []byte) ([]byte, []uint32) {
	const ahead = 4 // positions that are taken without asking whether there are as many
	n := m.Count()
	dst, at = slices.Grow(dst, 4*(n+ahead)), slices.Grow(at, n+ahead)
	to, places, next := dst[len(dst):len(dst)+4*(n+ahead)], at[len(at):len(at)+n+ahead], 0
	whole := min(len(src)/256, len(m)) // words all of whose positions are in src
	for i, w := range m[:whole] {
		// A pointer to an array of known size spares the bounds checks inside the loop.
		from := (*[256]byte)(src[i*256:])
		end := next + bits.OnesCount64(w)
		for ; next < end; next += ahead {
			values, place := (*[4 * ahead]byte)(to[4*next:]), (*[ahead]uint32)(places[next:])
			for k := range ahead {
				p := bits.TrailingZeros64(w) & 63
				binary.LittleEndian.PutUint32(values[4*k:], binary.LittleEndian.Uint32(from[4*p:]))
				place[k] = uint32(i*64 + p)
				w &= w - 1
			}
		}
		next = end
	}
	for i := whole; i < len(m); i++ {
		for w := m[i]; w != 0; w &= w - 1 {
			p := i*64 + bits.TrailingZeros64(w)
			binary.LittleEndian.PutUint32(to[4*next:], binary.LittleEndian.Uint32(src[4*p:]))
			places[next] = uint32(p)
			next++
		}
	}
	return dst[:len(dst)+4*n], at[:len(at)+n]
}

func (m Mask) gather8(dst, src []byte) []byte {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 8
			dst = binary.LittleEndian.AppendUint64(dst, binary.LittleEndian.Uint64(src[at:]))
		}
	}
	return dst
}
