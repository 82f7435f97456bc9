// Package quantize sends numbers in 1 to 8 bits each: QSGD (Alistarh et al. 2017). Each
// bucket of numbers has a norm of its own; a number is rounded at random to one of the two
// levels around it, between minus and plus the norm, so that what is received is on average
// what was sent.
//
// Numbers come in as the bytes of a values frame, or as another codec keeps them
// ([sparse.Vector].Values); the wire form, described in ../FORMAT.md, is appended to the
// caller's buffer. Where the rounding error is sent again later, as package ef21 does,
// [Config.Nearest] rounds to the nearest level instead, which has the smaller error.
//
// Random numbers depend on the seed and the position alone: the same seed gives the same
// bytes, and callers must take another one for each message, or the errors of successive
// messages would add up instead of cancelling. No state is kept from one message to the
// next, so encoder and decoder cannot disagree, and both are safe for concurrent use.
package quantize

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// ErrCorrupt is wrapped by all errors of decoding.
var ErrCorrupt = errors.New("quantize: corrupt values")

// Config says how numbers are rounded.
type Config struct {
	Bits   int // for each number, its sign included: 1 to 8
	Bucket int // numbers that share a norm: 8 to 65536
	// Nearest rounds to the nearest level, without randomness. That minimizes each
	// error, but the errors do not average out to zero. It takes 2 bits or more.
	Nearest bool
}

const (
	leastBucket = 8
	mostBucket  = 1 << 16
)

// piece is how many numbers are rounded at a time. As a multiple of 8 it ends with a whole
// byte of codes at every width, so pieces can be appended one behind the other.
const piece = 512

// Append appends the wire form of values, whole numbers of the kind, to dst. Buckets that
// cannot be rounded go as they are: those with a NaN or an infinity, and those whose norm
// is at the very ends of float32's range (of float64's for Float64), where scaling would
// overflow or lose everything. asIs is how many numbers these buckets have.
func (c Config) Append(dst []byte, kind element.Kind, values []byte, seed uint64) (encoded []byte, asIs int) {
	dst = append(dst, byte(c.Bits))
	dst = binary.AppendUvarint(dst, uint64(c.Bucket))
	random := vector.NewRandom(seed)
	var r room
	size := kind.Size()
	index := uint32(0)
	for len(values) > 0 {
		bucket := values[:min(len(values), c.Bucket*size)]
		values = values[len(bucket):]
		count := len(bucket) / size
		norm, ok := normOf(kind, bucket)
		switch {
		case !ok:
			dst = appendNorm(dst, kind, math.NaN())
			dst = append(dst, bucket...)
			asIs += count
		case norm == 0:
			dst = appendNorm(dst, kind, 0)
		default:
			dst = appendNorm(dst, kind, norm)
			dst = c.appendBucket(dst, &r, kind, bucket, norm, random, index)
		}
		index += uint32(count)
	}
	return dst, asIs
}

// normOf returns the norm of a bucket, the largest magnitude, as it goes on the wire; ok is
// false where the bucket cannot be rounded. A norm of 0 is ok: all numbers of the bucket are zero, and it has no
// codes.
func normOf(kind element.Kind, bucket []byte) (norm float64, ok bool) {
	norm = vector.MaxMagnitude(kind, bucket)
	if norm == 0 || norm-norm != 0 {
		return 0, norm == 0
	}
	// Codes are computed with the factor levels x 2^23 / norm, which must be finite, and
	// the decoder multiplies by norm / levels, which must not vanish.
	least, most := 0x1p-95, math.MaxFloat32/2
	if kind == element.Float64 {
		least, most = 0x1p-1000, math.MaxFloat64/2
	} else {
		// The receiver gets the norm as a float32. Rounding here has both ends scale by the
		// same number.
		norm = float64(float32(norm))
	}
	return norm, norm >= least && norm <= most
}

func appendNorm(dst []byte, kind element.Kind, norm float64) []byte {
	if kind == element.Float64 {
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(norm))
	}
	return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(norm)))
}

// Decode appends to dst the count numbers of a kind that [Config.Append] wrote and
// returns what follows them in src. The caller bounds count: memory for count numbers
// is allocated, though only if src can hold their norms.
func Decode(dst []byte, kind element.Kind, count int, src []byte) (values, rest []byte, err error) {
	if len(src) == 0 || src[0] < 1 || src[0] > 8 {
		return nil, nil, fmt.Errorf("%w: they do not begin with a number of bits", ErrCorrupt)
	}
	bits := int(src[0])
	bucket, used := binary.Uvarint(src[1:])
	if used <= 0 || bucket < leastBucket || bucket > mostBucket {
		return nil, nil, fmt.Errorf("%w: buckets of %d", ErrCorrupt, bucket)
	}
	src = src[1+used:]
	size := kind.Size()
	norms := 4
	if kind == element.Float64 {
		norms = 8
	}
	if buckets := (count + int(bucket) - 1) / int(bucket); buckets*norms > len(src) {
		return nil, nil, fmt.Errorf("%w: they end within %d numbers", ErrCorrupt, count)
	}
	dst = slices.Grow(dst, count*size)
	for count > 0 {
		n := min(count, int(bucket))
		if dst, src, err = readBucket(dst, kind, n, bits, src); err != nil {
			return nil, nil, err
		}
		count -= n
	}
	return dst, src, nil
}

// readBucket appends n numbers of a bucket to dst. It refuses norms that an encoder does
// not write, so that no decoded number is infinite.
func readBucket(dst []byte, kind element.Kind, n, bits int, src []byte) (values, rest []byte, err error) {
	norm, size := 0.0, kind.Size()
	switch {
	case kind == element.Float64 && len(src) >= 8:
		norm, src = element.Float64.At(src, 0), src[8:]
	case kind != element.Float64 && len(src) >= 4:
		norm, src = element.Float32.At(src, 0), src[4:]
	default:
		return nil, nil, fmt.Errorf("%w: they end before a norm", ErrCorrupt)
	}
	need := (n*bits + 7) / 8
	switch {
	case norm != norm:
		if need = n * size; need <= len(src) {
			return append(dst, src[:need]...), src[need:], nil
		}
	case norm == 0:
		end := len(dst) + n*size
		dst = slices.Grow(dst, n*size)[:end]
		clear(dst[end-n*size:])
		return dst, src, nil
	case norm < 0 || norm > math.MaxFloat64/2 || kind != element.Float64 && norm > math.MaxFloat32/2:
		return nil, nil, fmt.Errorf("%w: a norm of %g", ErrCorrupt, norm)
	}
	if need > len(src) {
		return nil, nil, fmt.Errorf("%w: they end within a bucket", ErrCorrupt)
	}
	end := len(dst) + n*size
	dst = slices.Grow(dst, n*size)[:end]
	vector.Dequantize(kind, dst[end-n*size:], src, bits, norm)
	return dst, src[need:], nil
}
