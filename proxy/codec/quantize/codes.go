package quantize

import (
	"encoding/binary"
	"slices"
)

// appendCodes appends codes of a width in bits, lowest bits first, padded to a
// whole byte. With one bit the codes are 1 and 2, which go as 0 and 1.
func appendCodes(dst, codes []byte, bits int) []byte {
	if bits == 8 {
		return append(dst, codes...)
	}
	whole := len(codes) &^ 7
	at := len(dst)
	dst = slices.Grow(dst, whole/8*bits+8)[:at+whole/8*bits+8]
	for i := 0; i < whole; i += 8 {
		x := squeeze(binary.LittleEndian.Uint64(codes[i:]), bits)
		binary.LittleEndian.PutUint64(dst[at:], x)
		at += bits
	}
	dst = dst[:at]
	if whole < len(codes) {
		var last [8]byte
		tail := copy(last[:], codes[whole:])
		x := squeeze(binary.LittleEndian.Uint64(last[:]), bits)
		for range (tail*bits + 7) / 8 {
			dst = append(dst, byte(x))
			x >>= 8
		}
	}
	return dst
}

// squeeze moves the low bits of 8 bytes together: neighbours, then pairs, then
// fours.
func squeeze(x uint64, bits int) uint64 {
	if bits == 1 {
		x = x >> 1 & 0x0101010101010101
	}
	b := uint(bits) & 7
	x = x&0x00ff00ff00ff00ff | x>>8&0x00ff00ff00ff00ff<<b
	x = x&0x0000ffff0000ffff | x>>16&0x0000ffff0000ffff<<(2*b)
	return x&0x00000000ffffffff | x>>32<<(4*b)
}

// readCodes is the way back: src has the codes' bits.
func readCodes(codes, src []byte, bits int) {
	if bits == 8 {
		copy(codes, src)
		return
	}
	for i := 0; i < len(codes); i += 8 {
		var x uint64
		if len(src) >= 8 {
			x = binary.LittleEndian.Uint64(src)
		} else {
			var last [8]byte
			copy(last[:], src)
			x = binary.LittleEndian.Uint64(last[:])
		}
		src = src[min(bits, len(src)):]
		x = spread(x, bits)
		if i+8 <= len(codes) {
			binary.LittleEndian.PutUint64(codes[i:], x)
			continue
		}
		for j := i; j < len(codes); j++ {
			codes[j] = byte(x)
			x >>= 8
		}
	}
}

// spread undoes squeeze.
func spread(x uint64, bits int) uint64 {
	b := uint(bits) & 7
	x = x&(1<<(4*b)-1) | x>>(4*b)&(1<<(4*b)-1)<<32
	m2 := (uint64(1)<<(2*b) - 1) * 0x0000000100000001
	x = x&m2 | x>>(2*b)&m2<<16
	m1 := (uint64(1)<<b - 1) * 0x0001000100010001
	x = x&m1 | x>>b&m1<<8
	if bits == 1 {
		x <<= 1
	}
	return x
}
