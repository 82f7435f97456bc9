package vector

import (
	"encoding/binary"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Differ sets bit i of mask if number i of a differs from number i of b in any bit, and
// clears it otherwise, so that all words of mask are written. The numbers have the kind's
// size; a and b have the same length. Bits are compared and not values: NaNs equal
// themselves, and the two zeros differ.
func Differ(kind element.Kind, a, b []byte, mask []uint64) {
	switch kind.Size() {
	case 2:
		differ2(a, b, mask)
	case 4:
		done := differ4(a, b, mask)
		differ4Portable(a[done*4:], b[done*4:], mask[done/64:])
	default:
		// Each number is two of 4 bytes.
		var halves [32]uint64
		for len(mask) > 0 {
			n := min(len(mask), len(halves)/2)
			size := min(len(a), n*64*8)
			Differ(element.Float32, a[:size], b[:size], halves[:(size+255)/256])
			if size%512 != 0 && size%512 <= 256 {
				halves[2*n-1] = 0 // the last word has no second half
			}
			for w := range n {
				mask[w] = uint64(eitherOfTwo(halves[2*w])) | uint64(eitherOfTwo(halves[2*w+1]))<<32
			}
			a, b, mask = a[size:], b[size:], mask[n:]
		}
	}
}

// eitherOfTwo sets bit i if bit 2i or 2i+1 of x is set.
func eitherOfTwo(x uint64) uint32 {
	x = (x | x>>1) & 0x5555555555555555
	x = (x | x>>1) & 0x3333333333333333
	x = (x | x>>2) & 0x0f0f0f0f0f0f0f0f
	x = (x | x>>4) & 0x00ff00ff00ff00ff
	x = (x | x>>8) & 0x0000ffff0000ffff
	return uint32(x | x>>16)
}

// differ2 and differ4Portable are Differ in portable code, for two sizes. Each word of the
// mask is built in a register and stored once.
func differ2(a, b []byte, mask []uint64) {
	for w := range mask {
		bits := uint64(0)
		for i := range min(64, len(a)/2-w*64) {
			at := (w*64 + i) * 2
			if binary.LittleEndian.Uint16(a[at:]) != binary.LittleEndian.Uint16(b[at:]) {
				bits |= 1 << i
			}
		}
		mask[w] = bits
	}
}

func differ4Portable(a, b []byte, mask []uint64) {
	for w := range mask {
		bits := uint64(0)
		for i := range min(64, len(a)/4-w*64) {
			at := (w*64 + i) * 4
			if binary.LittleEndian.Uint32(a[at:]) != binary.LittleEndian.Uint32(b[at:]) {
				bits |= 1 << i
			}
		}
		mask[w] = bits
	}
}
