package sparse

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Mask is a set of positions of a vector: position i is bit i%64 of word i/64.
type Mask []uint64

// Words is the length of the mask of a vector of n numbers.
func Words(n int) int { return (n + 63) / 64 }

// Resized returns an empty mask for n numbers in the memory of m, if it suffices.
func (m Mask) Resized(n int) Mask {
	m = m.resized(n)
	clear(m)
	return m
}

// resized is Resized with anything in it.
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

// runs is the number of runs of successive positions.
func (m Mask) runs() int {
	n, before := 0, uint64(0)
	for _, w := range m {
		n += bits.OnesCount64(w &^ (w<<1 | before))
		before = w >> 63
	}
	return n
}

// complement inverts the first n positions.
func (m Mask) complement(n int) {
	for i := range m {
		m[i] = ^m[i]
	}
	if tail := n % 64; tail != 0 {
		m[len(m)-1] &= 1<<tail - 1
	}
}

// SetRun adds n positions from first on.
func (m Mask) SetRun(first, n int) {
	for n > 0 {
		part := min(n, 64-first%64)
		m[first/64] |= ^uint64(0) >> (64 - part) << (first % 64)
		first += part
		n -= part
	}
}

// CopyRun adds those of n positions, from first on, that src has from its own on.
func (m Mask) CopyRun(first int, src Mask, from, n int) {
	for n > 0 {
		part := min(n, 64-first%64, 64-from%64)
		bits := src[from/64] >> (from % 64) & (^uint64(0) >> (64 - part))
		m[first/64] |= bits << (first % 64)
		first, from, n = first+part, from+part, n-part
	}
}

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

func (m Mask) gather2(dst, src []byte) []byte {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 2
			dst = append(dst, src[at:at+2]...)
		}
	}
	return dst
}

func (m Mask) gather4(dst, src []byte) []byte {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			at := (i*64 + bits.TrailingZeros64(w)) * 4
			dst = binary.LittleEndian.AppendUint32(dst, binary.LittleEndian.Uint32(src[at:]))
		}
	}
	return dst
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
