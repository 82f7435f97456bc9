package element

import "math"

// FromBFloat16 returns the number that a bfloat16 stands for.
func FromBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToBFloat16 rounds to the nearest bfloat16, ties to even. A finite number stays finite,
// and a NaN stays a NaN even if all of its upper payload bits are clear.
func ToBFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	if f != f {
		return uint16(bits>>16) | 0x40 // quiet, whatever the payload
	}
	// Adding 0x7fff, and one more if the bit above the cut is odd, carries into the upper
	// half exactly where rounding to the nearest even goes up.
	rounded := uint16((bits + 0x7fff + bits>>16&1) >> 16)
	if rounded&0x7fff == 0x7f80 && bits&0x7fffffff < 0x7f800000 {
		rounded-- // the largest finite number
	}
	return rounded
}

// FromFloat16 returns the number that a binary16 stands for.
func FromFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h >> 10 & 0x1f)
	fraction := uint32(h & 0x3ff)
	switch exponent {
	case 0: // zero or subnormal: fraction x 2^-24
		f := float32(fraction) * 0x1p-24
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 0x1f:
		if fraction != 0 {
			fraction |= 0x200 // quiet, as a processor does it
		}
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// ToFloat16 rounds to the nearest binary16, ties to even. A finite number stays finite, at
// most 65504 in magnitude, and a NaN stays a NaN.
func ToFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	bits &= 0x7fffffff
	switch {
	case bits > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(bits>>13&0x3ff)
	case bits == 0x7f800000:
		return sign | 0x7c00
	case bits >= 0x477ff000: // 65520 and more would round to infinity
		return sign | 0x7bff
	case bits >= 0x38800000: // normal: 2^-14 and more
		rounded := bits + 0xfff + bits>>13&1
		return sign | uint16((rounded-112<<23)>>13)
	}
	// Subnormal: the sum's unit in the last place is 2^-24, that of a subnormal binary16,
	// so the processor's addition rounds as wanted. Taking the bits of 0.5 away leaves the
	// fraction.
	sum := math.Float32frombits(bits) + 0.5
	return sign | uint16(math.Float32bits(sum)-0x3f000000)
}
