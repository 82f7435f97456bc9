// Package element knows the kinds of numbers that the values of a push or pull
// are: how long they are, and what they mean. A values frame is bytes; which
// kind they are PS-lite does not say for all of them, the user does.
//
// In go little endian bytes as on the wire, out come numbers, and back. The
// codecs for values call it.
package element

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Kind is a kind of number.
type Kind uint8

// The kinds. Float32 is what PS-lite jobs use as a rule; the 16-bit ones travel
// inside of CHAR blobs.
const (
	Float32  Kind = iota // IEEE 754 binary32
	Float64              // IEEE 754 binary64
	Float16              // IEEE 754 binary16
	BFloat16             // the upper half of a binary32
	kinds
)

var names = [kinds]string{"float32", "float64", "float16", "bfloat16"}

// String returns the name that [Parse] reads.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return names[k]
}

// Parse returns the kind of the given name.
func Parse(name string) (Kind, error) {
	for k, n := range names {
		if n == name {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("element kind %q is not known; use float32, float64, float16 or bfloat16", name)
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k < kinds }

// Size is the length of a number in bytes: 2, 4 or 8.
func (k Kind) Size() int {
	switch k {
	case Float32:
		return 4
	case Float64:
		return 8
	default:
		return 2
	}
}

// At returns number i of b.
func (k Kind) At(b []byte, i int) float64 {
	switch k {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i*4:])))
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[i*8:]))
	case Float16:
		return float64(FromFloat16(binary.LittleEndian.Uint16(b[i*2:])))
	default:
		return float64(FromBFloat16(binary.LittleEndian.Uint16(b[i*2:])))
	}
}

// Put writes v as number i of b, rounded to the nearest, ties to even. A finite
// number beyond the largest of its kind becomes the largest.
func (k Kind) Put(b []byte, i int, v float64) {
	switch k {
	case Float32:
		binary.LittleEndian.PutUint32(b[i*4:], math.Float32bits(ToFloat32(v)))
	case Float64:
		binary.LittleEndian.PutUint64(b[i*8:], math.Float64bits(v))
	case Float16:
		binary.LittleEndian.PutUint16(b[i*2:], ToFloat16(oddFloat32(v)))
	default:
		binary.LittleEndian.PutUint16(b[i*2:], ToBFloat16(oddFloat32(v)))
	}
}

// ToFloat32 rounds to the nearest float32; what is finite stays finite.
func ToFloat32(v float64) float32 {
	f := float32(v)
	if f-f != 0 && v-v == 0 {
		return float32(math.Copysign(math.MaxFloat32, v))
	}
	return f
}

// oddFloat32 rounds to a float32 such that rounding that once more, to 16
// bits, gives what rounding v at once would: an inexact result is odd.
func oddFloat32(v float64) float32 {
	f := ToFloat32(v)
	if float64(f) == v || v != v {
		return f
	}
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(v) {
		bits-- // towards zero
	}
	return math.Float32frombits(bits | 1)
}
