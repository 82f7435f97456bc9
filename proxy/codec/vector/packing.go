package vector

import "encoding/binary"

// packing has the factors that bring codes of fewer than 8 bits together: neighbouring
// bytes are multiplied and added, then neighbouring pairs of 16 bits, and of the resulting
// fours of 32 bits the lower ones are shifted up until they meet the others. Its layout is
// what the assembly reads.
type packing struct {
	pairs  [32]uint8
	fours  [16]uint16
	eights [8]uint32
}

// unpacking says where 8 codes are in the bytes that hold them: which bytes, how far above
// the bottom, and which bits. Its layout is what the assembly reads.
type unpacking struct {
	bytes  [32]uint8
	shifts [8]uint32
	clear  [8]uint32
}

// packings and unpackings are those of each width in bits, by the width. They are
// constants.
var (
	packings   = eachWidth(newPacking)
	unpackings = eachWidth(newUnpacking)
)

func eachWidth[T any](of func(bits int) T) (all [9]T) {
	for bits := 1; bits <= 8; bits++ {
		all[bits] = of(bits)
	}
	return all
}

// newPacking computes the factors of a width: the second of two codes is shifted by
// one width, the second of two pairs by two, by multiplying.
func newPacking(bits int) (p packing) {
	for i := range p.pairs {
		p.pairs[i] = 1 << (i % 2 * bits)
	}
	for i := range p.fours {
		p.fours[i] = 1 << (i % 2 * 2 * bits)
	}
	for i := 0; i < len(p.eights); i += 2 {
		p.eights[i] = uint32(32 - 4*bits)
	}
	return p
}

// newUnpacking computes where code i of eight lies: it begins at bit i*bits, and may
// reach into the next byte.
func newUnpacking(bits int) (u unpacking) {
	for i := range u.shifts {
		u.bytes[4*i], u.bytes[4*i+1] = uint8(i*bits/8), uint8(i*bits/8+1)
		u.bytes[4*i+2], u.bytes[4*i+3] = 0x80, 0x80 // zeros
		u.shifts[i] = uint32(i * bits % 8)
		u.clear[i] = 1<<bits - 1
	}
	return u
}

// packPortable appends the low bits of n codes to dst, lowest first, up to a whole byte.
func packPortable(dst []byte, bits int, n int, code func(i int) uint32) []byte {
	word, filled := uint64(0), 0
	for i := range n {
		word |= uint64(code(i)) << filled
		if filled += bits; filled >= 32 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(word))
			word >>= 32
			filled -= 32
		}
	}
	for ; filled > 0; filled -= 8 {
		dst = append(dst, byte(word))
		word >>= 8
	}
	return dst
}

// unpackPortable is the reverse: it returns code i of src.
func unpackPortable(src []byte, bits, i int) uint32 {
	at := i * bits
	v := uint32(src[at/8])
	if at/8+1 < len(src) {
		v |= uint32(src[at/8+1]) << 8
	}
	return v >> (at % 8) & (1<<bits - 1)
}
