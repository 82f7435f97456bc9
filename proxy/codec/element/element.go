// Package element describes the kinds of numbers that a push or pull carries: their size on
// the wire, their conversion to and from Go numbers, and how a sum or a rounded value
// becomes one of them again. A values frame is bytes; PS-lite does not name the kind of all
// of them (16-bit numbers travel as CHAR), so the user does, by a rule.
//
// Values are little endian, as on the wire, at any alignment. All rounding is to the
// nearest, ties to even, and saturates: a finite number never becomes an infinity, since
// one infinity in a server's parameters would spoil the model for good. The codecs for
// values call this package; the fast paths of package vector give the same bits.
package element

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Kind is a kind of number. Its value is part of the wire format of every codec
// (../FORMAT.md).
type Kind uint8

// The kinds. PS-lite jobs use Float32 as a rule; the 16-bit ones travel inside CHAR blobs.
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
	return 0, fmt.Errorf("char-values %q: want float32, float64, float16 or bfloat16", name)
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k < kinds }

// Size returns the length of a number in bytes: 2, 4 or 8.
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

// At returns number i of b, exactly: every kind is a subset of float64.
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

// Put writes v as number i of b, rounded to the nearest, ties to even. A finite number
// beyond the largest of its kind becomes the largest.
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

// ToFloat32 rounds to the nearest float32. A finite number stays finite.
func ToFloat32(v float64) float32 {
	f := float32(v)
	if f-f != 0 && v-v == 0 {
		return float32(math.Copysign(math.MaxFloat32, v))
	}
	return f
}

// oddFloat32 rounds to a float32 in such a way that rounding the result once more, to 16
// bits, gives what rounding v directly would. Two roundings to the nearest can differ from
// one where the first lands on a tie of the second. Rounding to odd avoids that: the result
// is truncated, and its last bit is set if anything was lost, so that it can never be such
// a tie.
func oddFloat32(v float64) float32 {
	f := ToFloat32(v)
	if float64(f) == v || v != v {
		return f
	}
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(v) {
		bits-- // the conversion rounded away from zero; truncate
	}
	return math.Float32frombits(bits | 1)
}
