package vector

import (
	"encoding/binary"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// RoundToFloat16 writes the numbers of v to dst as float16, rounded as [element.ToFloat16]
// rounds, and leaves in v what rounding took from each, or 0 for those that are not finite,
// which it counts.
func RoundToFloat16(dst []byte, v []float32) (nonFinite int) {
	done, nonFinite := roundToFloat16(dst, v)
	return nonFinite + roundPortable(dst[2*done:], v[done:], element.ToFloat16, element.FromFloat16)
}

// RoundToBFloat16 is [RoundToFloat16] for bfloat16 numbers.
func RoundToBFloat16(dst []byte, v []float32) (nonFinite int) {
	done, nonFinite := roundToBFloat16(dst, v)
	return nonFinite + roundPortable(dst[2*done:], v[done:], element.ToBFloat16, element.FromBFloat16)
}

// FromFloat16 sets dst to the float32 numbers that the float16 numbers of src are. dst may
// overlap src if src is the upper half of it: each number is read before its place is
// written.
func FromFloat16(dst, src []byte) {
	done := fromFloat16(dst, src)
	fromPortable(dst[4*done:], src[2*done:], element.FromFloat16)
}

// FromBFloat16 is [FromFloat16] for bfloat16 numbers.
func FromBFloat16(dst, src []byte) {
	done := fromBFloat16(dst, src)
	fromPortable(dst[4*done:], src[2*done:], element.FromBFloat16)
}

func fromPortable(dst, src []byte, from func(uint16) float32) {
	for i := range len(src) / 2 {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(from(binary.LittleEndian.Uint16(src[2*i:]))))
	}
}

// roundPortable rounds by to and from in portable code. A shift by one drops the
// sign, which makes infinities and NaNs the largest numbers.
func roundPortable(dst []byte, v []float32, to func(float32) uint16, from func(uint16) float32) (nonFinite int) {
	for i, x := range v {
		h := to(x)
		binary.LittleEndian.PutUint16(dst[2*i:], h)
		if math.Float32bits(x)<<1 >= 0xff<<24 {
			nonFinite++
			v[i] = 0
			continue
		}
		v[i] = x - from(h)
	}
	return nonFinite
}
