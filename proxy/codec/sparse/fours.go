package sparse

import (
	"encoding/binary"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// The functions of this file compute codes of several numbers at a time, since each put of
// a bitWriter depends on the one before. Shifts are masked so that the compiler omits its
// check for shifts of 64 and more.

// riceFours computes the Rice codes of values with low low bits each. codes[i] joins those
// of values 4i to 4i+3, the first one lowest, and widths[i] is how many bits they take;
// beyond 64 codes[i] is useless, and the caller has to code these values one by one. The
// code of v is v>>low zeros, a one and the low bits, from the lowest bit on. Values are
// less than 2^60, so that widths do not overflow. A rest of fewer than four values is the
// caller's.
func riceFours(codes, widths, values []uint64, low uint) {
	low &= 63
	mask, least := uint64(1)<<low-1, uint64(low)+1
	codes, widths = codes[:len(values)/4], widths[:len(values)/4]
	for i := range codes {
		v := (*[4]uint64)(values[4*i:])
		z0, z1, z2, z3 := v[0]>>low, v[1]>>low, v[2]>>low, v[3]>>low
		first := (v[0]&mask<<1|1)<<(z0&63) | (v[1]&mask<<1|1)<<(z1&63)<<((z0+least)&63)
		second := (v[2]&mask<<1|1)<<(z2&63) | (v[3]&mask<<1|1)<<(z3&63)<<((z2+least)&63)
		codes[i] = first | second<<((z0+z1+2*least)&63)
		widths[i] = z0 + z1 + z2 + z3 + 4*least
	}
}

// riceTwos computes codes of numbers that have an exponent in their bits from rest on.
// codes[i] joins those of values 2i and 2i+1, the first one lowest, and widths[i] is how
// many bits they take; beyond 64 codes[i] is useless. The code of v is the Rice code, with
// low low bits, of the difference between its exponent and base, upward if down is 0 and
// downward if it is all ones, then the bits below rest. Differences are less than 2^60 /
// 2^rest.
func riceTwos(codes, widths, values []uint64, base, down uint64, rest, low uint) {
	low, rest = low&63, rest&63
	mask, others, least := uint64(1)<<low-1, uint64(1)<<rest-1, uint64(low+rest)+1
	codes, widths = codes[:len(values)/2], widths[:len(values)/2]
	for i := range codes {
		v := (*[2]uint64)(values[2*i:])
		e0, e1 := (v[0]>>rest-base^down)-down, (v[1]>>rest-base^down)-down
		z0, z1 := e0>>low, e1>>low
		codes[i] = ((v[0]&others<<low|e0&mask)<<1|1)<<(z0&63) |
			((v[1]&others<<low|e1&mask)<<1|1)<<(z1&63)<<((z0+least)&63)
		widths[i] = z0 + z1 + 2*least
	}
}

// halvings sums the differences of the exponents of up to valueBlock numbers, their bits
// from rest on, upward from least and downward from most, between which all of them are:
// whole, halved and quartered, each rounded down. These are the lengths of the zeros in
// Rice codes with 0, 1 and 2 low bits, from which the caller chooses.
func halvings(values []uint64, least, most uint64, rest uint) (up, down [3]uint64) {
	// What rounding down takes away follows from how many exponents have which last two
	// bits: four counts of 16 bits.
	sum, counts, ofLast := uint64(0), uint64(0), [4]uint64{1, 1 << 16, 1 << 32, 1 << 48}
	for _, v := range values {
		e := v >> (rest & 63)
		sum += e
		counts += ofLast[e&3]
	}
	n := uint64(len(values))
	up[0], down[0] = sum-n*least, n*most-sum
	for r := 1; r < 3; r++ {
		mask, above, below := uint64(1)<<r-1, uint64(0), uint64(0)
		for last := range uint64(4) {
			count := counts >> (last * 16) & 0xffff
			above += count * ((last - least) & mask)
			below += count * ((most - last) & mask)
		}
		up[r], down[r] = (up[0]-above)>>r, (down[0]-below)>>r
	}
	return up, down
}

// fixedFours computes codes of param + rest bits each, 16 at most. codes[i] joins those of
// values 4i to 4i+3, the first one lowest. The code of v is (v - base) >> rest in param
// bits, for which it must be small enough, then the low rest bits of v.
func fixedFours(codes, values []uint64, base uint64, rest, param uint) {
	rest, param = rest&63, param&63
	mask, width := uint64(1)<<rest-1, rest+param
	for i := range codes[:len(values)/4] {
		v := (*[4]uint64)(values[4*i:])
		c0, c1 := (v[0]-base)>>rest|v[0]&mask<<param, (v[1]-base)>>rest|v[1]&mask<<param
		c2, c3 := (v[2]-base)>>rest|v[2]&mask<<param, (v[3]-base)>>rest|v[3]&mask<<param
		codes[i] = c0 | c1<<(width&63) | c2<<(2*width&63) | c3<<(3*width&63)
	}
}

// rotate sets dst to the numbers of a kind, at least one, rotated left by one bit, so that
// the sign comes last and the order of the results is that of the exponents. It returns the
// least and the largest.
func rotate(kind element.Kind, dst []uint64, src []byte) (least, most uint64) {
	least = ^least
	switch kind.Size() {
	case 2:
		for i := range dst {
			v := uint64(bits.RotateLeft16(binary.LittleEndian.Uint16(src[2*i:]), 1))
			dst[i], least, most = v, min(least, v), max(most, v)
		}
	case 4:
		low, high := ^uint32(0), uint32(0)
		for i := range dst {
			v := bits.RotateLeft32(binary.LittleEndian.Uint32(src[4*i:]), 1)
			dst[i], low, high = uint64(v), min(low, v), max(high, v)
		}
		least, most = uint64(low), uint64(high)
	default:
		for i := range dst {
			v := bits.RotateLeft64(binary.LittleEndian.Uint64(src[8*i:]), 1)
			dst[i], least, most = v, min(least, v), max(most, v)
		}
	}
	return least, most
}
