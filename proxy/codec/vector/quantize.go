package vector

import (
	"encoding/binary"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Random is a stream of random numbers that can be read anywhere: number i
// depends on nothing but the key and i.
type Random struct{ a, b uint32 }

// NewRandom returns the stream of a seed. Seeds that differ in any bit give
// streams that have nothing in common.
func NewRandom(seed uint64) Random {
	z := seed + 0x9e3779b97f4a7c15 // SplitMix64
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return Random{uint32(z), uint32(z >> 32)}
}

// At is number i, in [0, 1), a multiple of 2^-24.
func (r Random) At(i uint32) float32 {
	x := i ^ r.a
	x = (x ^ x>>16) * 0x7feb352d
	x = (x ^ x>>15) + r.b
	x *= 0x846ca68b
	x ^= x >> 16
	return float32(x>>8) * 0x1p-24
}

// MaxMagnitude returns the largest magnitude of the float32 numbers in values:
// a NaN if there is one. No numbers give 0.
func MaxMagnitude(values []byte) float32 {
	done, bits := maxMagnitude(values)
	return math.Float32frombits(max(bits, maxMagnitudePortable(values[done*4:])))
}

func maxMagnitudePortable(values []byte) (bits uint32) {
	for ; len(values) >= 4; values = values[4:] {
		bits = max(bits, binary.LittleEndian.Uint32(values)&^(1<<31))
	}
	return bits
}

// Quantize rounds the float32 numbers v of values to levels: codes[i] is levels
// plus or minus l, the sign being v's, where l is r = |v| x scale, at most
// levels, rounded down, or up with a probability of r - l. The random numbers are
// those of random from first on.
func Quantize(codes []byte, values []byte, scale, levels float32, random Random, first uint32) {
	done := quantize(codes, values, scale, levels, random, first)
	quantizePortable(codes[done:], values[done*4:], scale, levels, random, first+uint32(done))
}

func quantizePortable(codes []byte, values []byte, scale, levels float32, random Random, first uint32) {
	for i := range codes {
		v := math.Float32frombits(binary.LittleEndian.Uint32(values[i*4:]))
		magnitude := math.Float32frombits(math.Float32bits(v) &^ (1 << 31))
		r := min(float32(magnitude*scale), levels)
		level := float32(math.Floor(float64(r)))
		if float32(r-level) > random.At(first+uint32(i)) {
			level++
		}
		if math.Signbit(float64(v)) {
			level = -level
		}
		codes[i] = byte(int(levels) + int(level))
	}
}

// Dequantize makes values the float32 numbers (codes[i] - levels) x unit.
func Dequantize(values []byte, codes []byte, unit float32, levels int) {
	done := dequantize(values, codes, unit, levels)
	dequantizePortable(values[done*4:], codes[done:], unit, levels)
}

func dequantizePortable(values []byte, codes []byte, unit float32, levels int) {
	for i := range codes {
		v := float32(int(codes[i])-levels) * unit
		binary.LittleEndian.PutUint32(values[i*4:], math.Float32bits(v))
	}
}

// Differ sets bit i of mask where number i of a differs from number i of b in
// any bit. The numbers have the kind's size.
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
