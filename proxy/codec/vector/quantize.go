package vector

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Random is a stream of random numbers that can be read anywhere: number i depends on
// nothing but the key and i. So numbers can be rounded in any order and in vectors of
// eight, with the same result.
type Random struct{ a, b uint32 }

// NewRandom returns the stream of a seed. Seeds that differ in any bit give independent
// streams.
func NewRandom(seed uint64) Random {
	z := splitmix.Next(seed)
	return Random{uint32(z), uint32(z >> 32)}
}

// At returns number i: 23 random bits. The mixing uses 32-bit operations only, which AVX2
// has.
func (r Random) At(i uint32) uint32 {
	x := i ^ r.a
	x = (x ^ x>>16) * 0x7feb352d
	x = (x ^ x>>15) + r.b
	x *= 0x846ca68b
	x ^= x >> 16
	return x >> 9
}

// MaxMagnitude returns the largest magnitude of the numbers of a kind in values: a NaN if
// there is one, 0 if there are no numbers. Magnitudes compare as their bits do, NaNs above
// infinity.
func MaxMagnitude(kind element.Kind, values []byte) float64 {
	size := kind.Size()
	done, most := maxMagnitude(values, size)
	most = max(most, maxMagnitudePortable(kind, values[done*size:]))
	switch kind {
	case element.Float64:
		return math.Float64frombits(most)
	case element.Float32:
		return float64(math.Float32frombits(uint32(most)))
	case element.Float16:
		return float64(element.FromFloat16(uint16(most)))
	default:
		return float64(element.FromBFloat16(uint16(most)))
	}
}

func maxMagnitudePortable(kind element.Kind, values []byte) (most uint64) {
	for i := range len(values) / kind.Size() {
		most = max(most, Magnitude(kind, values, i))
	}
	return most
}

// fraction is how many bits distinguish the numbers between two levels: as many as random
// numbers have.
const fraction = 23

// Levels is how many levels a width in bits has above zero: s of QSGD. One bit has none
// between minus and plus the norm.
func Levels(bits int) int { return max(1<<(bits-1)-1, 1) }

// rounding says how numbers become codes: times scale, plus base, plus a random number,
// without the fraction bits. All of it is integer arithmetic but for the multiplication, so
// that every processor gives the same codes.
type rounding struct {
	scale      float32
	base, most uint32
}

func newRounding(bits int, norm float32) rounding {
	if bits == 1 {
		return rounding{(1 << (fraction - 1)) / norm, 1 << (fraction - 1), 1}
	}
	s := Levels(bits)
	return rounding{float32(s<<fraction) / norm, uint32(s) << fraction, uint32(2 * s)}
}

// Quantize rounds the float32 numbers of values, whose magnitudes are at most norm or
// little more, to codes of 1 to 8 bits, and appends these to dst, lowest bits first, up to
// a whole byte. Code c stands for norm/s x (c - s), with s of [Levels]; with one bit, 0
// stands for minus the norm and 1 for the norm. Of the two codes around a number the one is
// taken that is below the number's place plus a random number in [0, 1), so that on average
// the result is right. Places are rounded to 2^-23. Number i takes random's number first +
// i. norm is at least 2^-95.
func Quantize(dst, values []byte, bits int, norm float32, random Random, first uint32) []byte {
	r := newRounding(bits, norm)
	n, at := len(values)/4, len(dst)
	size := (n*bits + 7) / 8
	// The assembly stores 8 bytes for each 8 codes, whatever these take, and so writes up
	// to 8 bytes behind the last code.
	dst = slices.Grow(dst, size+8)
	done := quantize(dst[at:at+size+8], values, bits, r, random, first)
	return quantizePortable(dst[:at+done/8*bits], values[done*4:], bits, r, random, first+uint32(done))
}

func quantizePortable(dst, values []byte, bits int, r rounding, random Random, first uint32) []byte {
	return roundingPortable(dst, values, bits, r, func(i int) uint32 { return random.At(first + uint32(i)) })
}

// roundingPortable rounds to codes, after adding what above returns for each number.
func roundingPortable(dst, values []byte, bits int, r rounding, above func(i int) uint32) []byte {
	return packPortable(dst, bits, len(values)/4, func(i int) uint32 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(values[i*4:]))
		place := int32(math.RoundToEven(float64(float32(v * r.scale))))
		code := (place + int32(r.base+above(i))) >> fraction
		return uint32(min(max(code, 0), int32(r.most)))
	})
}

// aHalf is half of the way between two codes.
const aHalf = 1 << (fraction - 1)

// QuantizeNearest is [Quantize] without chance: of the two codes around a number the nearer
// one is taken, so that the error of what is received is at most half a level. bits is 2 or
// more: with one bit, zero would become the norm or its negative.
func QuantizeNearest(dst, values []byte, bits int, norm float32) []byte {
	r := newRounding(bits, norm)
	n, at := len(values)/4, len(dst)
	size := (n*bits + 7) / 8
	dst = slices.Grow(dst, size+8)
	done := nearest(dst[at:at+size+8], values, bits, r)
	return nearestPortable(dst[:at+done/8*bits], values[done*4:], bits, r)
}

func nearestPortable(dst, values []byte, bits int, r rounding) []byte {
	return roundingPortable(dst, values, bits, r, func(int) uint32 { return aHalf })
}

// Dequantize sets values to the numbers of a kind that codes of the given width stand for
// with this norm. norm is finite and, except for Float64, a float32. codes may have more
// bytes than these take, and should: the assembly reads 8 bytes for each 8 codes and leaves
// to the portable code whatever would lie beyond the end.
func Dequantize(kind element.Kind, values, codes []byte, bits int, norm float64) {
	unit, offset := norm/float64(Levels(bits)), float32(Levels(bits))
	if bits == 1 {
		unit, offset = 2*norm, 0.5
	}
	if kind != element.Float64 {
		unit = float64(float32(unit))
	}
	done := dequantize(kind, values, codes, bits, unit, offset)
	dequantizePortable(kind, values[done*kind.Size():], codes[done/8*bits:], bits, unit, offset)
}

// dequantizePortable is Dequantize in portable code. The product is rounded to
// float32 before it is rounded to the kind, as the assembly does it.
func dequantizePortable(kind element.Kind, values, codes []byte, bits int, unit float64, offset float32) {
	for i := range len(values) / kind.Size() {
		v := float64(float32(unpackPortable(codes, bits, i))-offset) * unit
		if kind != element.Float64 {
			v = float64(float32(v))
		}
		kind.Put(values, i, v)
	}
}
