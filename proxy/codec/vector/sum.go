package vector

import (
	"encoding/binary"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// SumFloat adds the numbers of src, of a kind, to those of dst, which has as many bytes.
// Each sum is rounded once, to the nearest, ties to even; numbers that are not finite add
// as in IEEE 754. A sum that a float32 holds stays finite in 16 bits, too, as package
// element rounds.
func SumFloat(kind element.Kind, dst, src []byte) {
	src = src[:len(dst)]
	done := sumFloat(kind, dst, src)
	dst, src = dst[done:], src[done:]
	switch kind {
	case element.Float32:
		for i := 0; i+4 <= len(dst); i += 4 {
			sum := math.Float32frombits(binary.LittleEndian.Uint32(dst[i:])) + math.Float32frombits(binary.LittleEndian.Uint32(src[i:]))
			binary.LittleEndian.PutUint32(dst[i:], math.Float32bits(sum))
		}
	case element.Float64:
		for i := 0; i+8 <= len(dst); i += 8 {
			sum := math.Float64frombits(binary.LittleEndian.Uint64(dst[i:])) + math.Float64frombits(binary.LittleEndian.Uint64(src[i:]))
			binary.LittleEndian.PutUint64(dst[i:], math.Float64bits(sum))
		}
	case element.Float16:
		sum16(dst, src, element.FromFloat16, element.ToFloat16)
	default:
		sum16(dst, src, element.FromBFloat16, element.ToBFloat16)
	}
}

// sum16 adds numbers of 16 bits through float32. Rounding twice, first to float32 and
// then to 16 bits, gives the same as rounding once: float32 has 24 significant bits,
// and 2p+2 suffice for p = 11 (float16) and p = 8 (bfloat16).
func sum16(dst, src []byte, from func(uint16) float32, to func(float32) uint16) {
	for i := 0; i+2 <= len(dst); i += 2 {
		sum := from(binary.LittleEndian.Uint16(dst[i:])) + from(binary.LittleEndian.Uint16(src[i:]))
		binary.LittleEndian.PutUint16(dst[i:], to(sum))
	}
}

// SumInt adds the integers of src, of size bytes each (1, 2, 4 or 8), to those of dst,
// which has as many bytes. Sums wrap around, signed or unsigned.
func SumInt(size int, dst, src []byte) {
	src = src[:len(dst)]
	done := sumInt(size, dst, src)
	dst, src = dst[done:], src[done:]
	for i := 0; i+size <= len(dst); i += size {
		d, s := dst[i:i+size], src[i:i+size]
		switch size {
		case 1:
			d[0] += s[0]
		case 2:
			binary.LittleEndian.PutUint16(d, binary.LittleEndian.Uint16(d)+binary.LittleEndian.Uint16(s))
		case 4:
			binary.LittleEndian.PutUint32(d, binary.LittleEndian.Uint32(d)+binary.LittleEndian.Uint32(s))
		case 8:
			binary.LittleEndian.PutUint64(d, binary.LittleEndian.Uint64(d)+binary.LittleEndian.Uint64(s))
		}
	}
}
