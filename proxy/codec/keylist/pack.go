package keylist

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// blockLen is how many values are packed with one common width.
const blockLen = 128

// appendBlock appends 1 to blockLen values: a byte with their width in bits, then the
// values in that width, lowest bits first, padded to a whole byte. Gaps of 0 after division
// by the stride, which dense lists have throughout, take the byte alone.
func appendBlock(dst []byte, values []uint64) []byte {
	var all uint64
	for _, v := range values {
		all |= v
	}
	width := uint(bits.Len64(all))
	dst = append(dst, byte(width))
	switch {
	case width == 0:
		return dst
	case width <= narrow && len(values) == blockLen:
		return appendNarrow(dst, (*[blockLen]uint64)(values), width)
	}
	var word uint64 // bits not yet written, in its low `filled` bits
	var filled uint
	for _, v := range values {
		word |= v << filled
		filled += width
		if filled >= 64 {
			dst = binary.LittleEndian.AppendUint64(dst, word)
			filled -= 64
			word = v >> (width - filled) // a shift by 64 gives 0
		}
	}
	for ; filled > 0; filled -= min(filled, 8) {
		dst = append(dst, byte(word))
		word >>= 8
	}
	return dst
}

// narrow is the width up to which four values fit into the 56 bits that can be joined to 7
// pending ones.
const narrow = 14

// appendNarrow appends a whole block of narrow values, four at a time and without a branch
// that depends on the width.
func appendNarrow(dst []byte, values *[blockLen]uint64, width uint) []byte {
	start, size := len(dst), int(width)*blockLen/8
	dst = extend(dst, size+8) // the last store may reach beyond
	out := dst[start:]
	var word uint64 // bits not yet written, in its low `filled` bits, fewer than 8
	var filled uint
	for i := 0; i < blockLen; i += 4 {
		four := (*[4]uint64)(values[i:])
		word |= (four[0] | four[1]<<(width&63) | four[2]<<(2*width&63) | four[3]<<(3*width&63)) << (filled & 63)
		binary.LittleEndian.PutUint64(out, word)
		filled += 4 * width
		out = out[filled>>3:]
		word >>= filled &^ 7 & 63
		filled &= 7
	}
	return dst[:start+size]
}

// readBlock fills values with what [appendBlock] wrote and returns what follows.
func readBlock(src []byte, values []uint64) ([]byte, error) {
	if len(src) == 0 {
		return nil, fmt.Errorf("%w: it ends before a block", ErrCorrupt)
	}
	width := uint(src[0])
	src = src[1:]
	if width > 64 {
		return nil, fmt.Errorf("%w: a block of width %d", ErrCorrupt, width)
	}
	size := (int(width)*len(values) + 7) / 8
	if size > len(src) {
		return nil, fmt.Errorf("%w: it ends within a block", ErrCorrupt)
	}
	switch {
	case width == 0:
		clear(values)
	case width <= 56:
		unpackNarrow(src[:size], values, width)
	default:
		unpackWide(src[:size], values, width)
	}
	return src[size:], nil
}

// unpackNarrow reads values of up to 56 bits, each within one 8-byte load.
func unpackNarrow(src []byte, values []uint64, width uint) {
	mask := uint64(1)<<width - 1
	at := uint(0)
	whole := 0 // values whose 8 bytes lie within src
	if len(src) >= 8 {
		whole = min(len(values), int(uint(len(src)-8)*8/width)+1)
	}
	for i := range whole {
		values[i] = binary.LittleEndian.Uint64(src[at>>3:]) >> (at & 7) & mask
		at += width
	}
	for i := whole; i < len(values); i++ {
		values[i] = loadPartial(src[at>>3:]) >> (at & 7) & mask
		at += width
	}
}

// loadPartial is a little-endian load of the bytes that exist; the others are zero.
func loadPartial(src []byte) uint64 {
	var tail [8]byte
	copy(tail[:], src)
	return binary.LittleEndian.Uint64(tail[:])
}

// unpackWide reads values of more than 56 bits, which can span 9 bytes.
func unpackWide(src []byte, values []uint64, width uint) {
	mask := uint64(1)<<(width-1)<<1 - 1
	at := uint(0)
	for i := range values {
		from, shift := at>>3, at&7
		v := loadPartial(src[from:]) >> shift
		if shift+width > 64 {
			v |= uint64(src[from+8]) << (64 - shift)
		}
		values[i] = v & mask
		at += width
	}
}
