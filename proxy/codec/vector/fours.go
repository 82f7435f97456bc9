package vector

import (
	"encoding/binary"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// RiceFours computes the Rice codes of values with low low bits each, 32 at most. codes[i]
// joins those of values 4i to 4i+3, the first one lowest, and widths[i] is how many bits
// they take; beyond 64 codes[i] lacks some, and the caller has to code these values one by
// one. The code of v is v>>low zeros, a one and the low bits, from the lowest bit on.
// Values are less than 2^60, so that widths do not overflow. A rest of fewer than four
// values is the caller's.
func RiceFours(codes, widths, values []uint64, low uint) {
	done := riceFours(codes, widths, values, low)
	for i := done / 4; i < len(values)/4; i++ {
		codes[i], widths[i] = 0, 0
		for _, v := range values[4*i : 4*i+4] {
			zeros := v >> low
			codes[i] |= (v&(1<<low-1)<<1 | 1) << zeros << widths[i]
			widths[i] += zeros + 1 + uint64(low)
		}
	}
}

// RiceTwos computes codes of numbers that have an exponent in their bits from rest on.
// codes[i] joins those of values 2i and 2i+1, the first one lowest, and widths[i] is how
// many bits they take; beyond 64 codes[i] lacks some. The code of v is the Rice code, with
// low low bits, of the difference between its exponent and base, upward if down is 0 and
// downward if it is all ones, then the bits below rest. Differences are less than 2^60 /
// 2^rest.
func RiceTwos(codes, widths, values []uint64, base, down uint64, rest, low uint) {
	done := riceTwos(codes, widths, values, base, down, rest, low)
	for i := done / 2; i < len(values)/2; i++ {
		codes[i], widths[i] = 0, 0
		for _, v := range values[2*i : 2*i+2] {
			e := (v>>rest - base ^ down) - down
			codes[i] |= ((v&(1<<rest-1)<<low|e&(1<<low-1))<<1 | 1) << (e >> low) << widths[i]
			widths[i] += e>>low + 1 + uint64(low) + uint64(rest)
		}
	}
}

// Halvings sums the differences of the exponents of numbers, their bits from rest on,
// upward from least and downward from most, between which all of them are: whole, halved
// and quartered, each rounded down. These are the lengths of the zeros in Rice codes with
// 0, 1 and 2 low bits, from which the caller chooses.
func Halvings(values []uint64, least, most uint64, rest uint) (up, down [3]uint64) {
	done := halvings(values, least, most, rest, &up, &down)
	for _, v := range values[done:] {
		above, below := v>>rest-least, most-v>>rest
		for r := range up {
			up[r] += above >> r
			down[r] += below >> r
		}
	}
	return up, down
}

// FixedFours computes codes of param + rest bits each, 16 at most. codes[i] joins those of
// values 4i to 4i+3, the first one lowest. The code of v is (v - base) >> rest in param
// bits, for which it must be small enough, then the low rest bits of v.
func FixedFours(codes, values []uint64, base uint64, rest, param uint) {
	done := fixedFours(codes, values, base, rest, param)
	for i := done / 4; i < len(values)/4; i++ {
		codes[i] = 0
		for j, v := range values[4*i : 4*i+4] {
			codes[i] |= ((v-base)>>rest | v&(1<<rest-1)<<param) << (uint(j) * (rest + param))
		}
	}
}

// Rotate sets dst to the numbers of a kind, at least one, rotated left by one bit, so that
// the sign comes last and the order of the results is that of the exponents. It returns the
// least and the largest.
func Rotate(kind element.Kind, dst []uint64, src []byte) (least, most uint64) {
	done := 0
	least = ^least
	switch kind.Size() {
	case 2:
		done, least, most = rotate16(dst, src)
		for i := done; i < len(dst); i++ {
			dst[i] = uint64(bits.RotateLeft16(binary.LittleEndian.Uint16(src[2*i:]), 1))
		}
	case 4:
		done, least, most = rotate32(dst, src)
		for i := done; i < len(dst); i++ {
			dst[i] = uint64(bits.RotateLeft32(binary.LittleEndian.Uint32(src[4*i:]), 1))
		}
	default:
		for i := range dst {
			dst[i] = bits.RotateLeft64(binary.LittleEndian.Uint64(src[8*i:]), 1)
		}
	}
	for _, v := range dst[done:] {
		least, most = min(least, v), max(most, v)
	}
	return least, most
}
