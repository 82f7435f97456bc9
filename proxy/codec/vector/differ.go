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
		done := differ8(a, b, mask)
		differ8Portable(a[done*8:], b[done*8:], mask[done/64:])
	}
}

// differ2, differ4Portable and differ8Portable are Differ in portable code, for each
// size. Each word of the mask is built in a register and stored once.
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

func differ8Portable(a, b []byte, mask []uint64) {
	for w := range mask {
		bits := uint64(0)
		for i := range min(64, len(a)/8-w*64) {
			at := (w*64 + i) * 8
			if binary.LittleEndian.Uint64(a[at:]) != binary.LittleEndian.Uint64(b[at:]) {
				bits |= 1 << i
			}
		}
		mask[w] = bits
	}
}
