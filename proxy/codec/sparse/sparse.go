// Package sparse is the wire form of vectors of which only some numbers are sent: which
// positions these are, and their values, in few bytes at every density.
//
// A [Vector] is a mask of n bits and the values where it is set, one after the other.
// [Vector.Append] appends the wire form to the caller's buffer, [Vector.Decode] reads it
// into a Vector whose memory is used again, and [Vector.Expand] or [Vector.Merge] put the
// values where they belong. Positions and values are coded separately: positions as gaps,
// runs or a bitmap (positions.go), values with their exponents packed (valueblock.go),
// since the largest numbers of a gradient differ little in their exponents and their
// fractions are noise.
//
// Callers are the codecs for values: threshold, slim, unchanged, ef21 and rows. The wire
// form is described in ../FORMAT.md. It depends on no state and on no message before it;
// nothing in the package is safe for concurrent use of one Vector.
package sparse

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// ErrCorrupt is wrapped by all errors of decoding: the bytes are not what Append wrote.
var ErrCorrupt = errors.New("sparse: corrupt vector")

// Vector is a vector of N numbers of which those that Mask names have a value. len(Values)
// is always Mask.Count() numbers of Kind. Its slices are reused by whoever fills it next.
type Vector struct {
	Kind   element.Kind
	N      int    // length of the whole vector, in numbers
	Mask   Mask   // Words(N) words; bits from N on are zero
	Values []byte // Mask.Count() numbers of Kind, in ascending position
	// At lists the positions of Mask, ascending, if whoever filled the vector knew them
	// without searching; otherwise it is empty.
	At []uint32
}

// packedShare decides how values are coded: those of vectors less than 1/packedShare full
// are packed, others go as they are, which is faster and little longer.
const packedShare = 4

// Reset makes v a vector of n numbers without any values, in the memory that it has.
func (v *Vector) Reset(kind element.Kind, n int) {
	v.Resize(kind, n)
	clear(v.Mask)
}

// Resize is [Vector.Reset] for callers that write all words of Mask themselves: the words
// may hold anything.
func (v *Vector) Resize(kind element.Kind, n int) {
	v.Kind, v.N = kind, n
	v.Mask = v.Mask.resized(n)
	v.Values, v.At = v.Values[:0], v.At[:0]
}

// Count returns how many numbers have a value.
func (v *Vector) Count() int { return len(v.Values) / v.Kind.Size() }

// Append appends the wire form of v: a byte with the kind, N, positions, values.
func (v *Vector) Append(dst []byte) []byte {
	dst = v.AppendHeader(dst)
	return AppendValues(dst, v.Kind, v.Values, v.Count() < v.N/packedShare)
}

// AppendHeader appends what [Vector.Append] does except for the values, for callers that
// code the values themselves, as package quantize does.
func (v *Vector) AppendHeader(dst []byte) []byte {
	dst = append(dst, byte(v.Kind))
	dst = binary.AppendUvarint(dst, uint64(v.N))
	return appendPositions(dst, v.Mask, v.At, v.Count(), v.N)
}

// Decode reads what [Vector.Append] wrote and returns what follows it. A vector of more
// than most numbers is refused before any memory is taken for it: a few bytes can claim any
// length.
func (v *Vector) Decode(src []byte, most int) (rest []byte, err error) {
	count, src, err := v.DecodeHeader(src, most)
	if err != nil {
		return nil, err
	}
	v.Values, rest, err = DecodeValues(v.Values[:0], v.Kind, count, src)
	return rest, err
}

// DecodeHeader reads what [Vector.AppendHeader] wrote: Kind, N and Mask. It returns how
// many values belong to it and what follows. Values are still those of the vector before.
func (v *Vector) DecodeHeader(src []byte, most int) (count int, rest []byte, err error) {
	if len(src) == 0 || !element.Kind(src[0]).Valid() {
		return 0, nil, fmt.Errorf("%w: it does not begin with a kind of number", ErrCorrupt)
	}
	n, used := binary.Uvarint(src[1:])
	if used <= 0 || n > uint64(max(most, 0)) {
		return 0, nil, fmt.Errorf("%w: it claims %d numbers, at most %d are expected", ErrCorrupt, n, most)
	}
	v.Reset(element.Kind(src[0]), int(n))
	return DecodePositions(src[1+used:], v.Mask, v.N)
}

// Expand makes dst the whole vector: the values, and zeros elsewhere. dst has N numbers, the last of
// which may be Values: no value is overwritten before it has been read.
func (v *Vector) Expand(dst []byte) {
	word := 64 * v.Kind.Size() // the size of what a word of Mask stands for
	whole := (len(dst) - len(v.Values)) / word
	clear(dst[:whole*word])
	values := v.Values[v.Mask[:whole].Count()*v.Kind.Size():]
	v.scatter(v.Mask[:whole], dst, v.Values)
	var part [64 * 8]byte
	for i := whole; i < len(v.Mask); i++ {
		n := copy(part[:], values[:v.Mask[i:i+1].Count()*v.Kind.Size()])
		values = values[n:]
		to := dst[i*word : min((i+1)*word, len(dst))]
		clear(to)
		v.scatter(v.Mask[i:i+1], to, part[:n])
	}
}

// Merge puts the values into dst, which has N numbers, and leaves all others as they are.
func (v *Vector) Merge(dst []byte) { v.scatter(v.Mask, dst, v.Values) }

// scatter puts values to the positions of a mask in dst.
func (v *Vector) scatter(m Mask, dst, values []byte) {
	switch v.Kind.Size() {
	case 2:
		m.scatter2(dst, values)
	case 4:
		m.scatter4(dst, values)
	default:
		m.scatter8(dst, values)
	}
}

// Gather sets Values to the numbers of src at the positions of Mask. src has N numbers. If
// they are few it lists their positions in At, by the way and at no cost.
func (v *Vector) Gather(src []byte) {
	v.At = v.At[:0]
	switch v.Kind.Size() {
	case 2:
		v.Values = v.Mask.gather2(v.Values[:0], src)
	case 4:
		if v.Mask.Count() < v.N/packedShare {
			v.Values, v.At = v.Mask.gather4(v.Values[:0], v.At, src)
		} else {
			v.Values = v.Mask.gatherDense4(v.Values[:0], src)
		}
	default:
		v.Values = v.Mask.gather8(v.Values[:0], src)
	}
}
