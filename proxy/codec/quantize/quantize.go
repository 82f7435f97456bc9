// Package quantize sends numbers in 1 to 8 bits each: QSGD (Alistarh and
// others, 2017), random rounding to levels between minus and plus a norm that
// each bucket of numbers has for itself, so that what is received is on average
// what was sent.
//
// In come numbers as the bytes of a values frame, or those that another codec
// keeps of them ([sparse.Vector].Values); out goes the wire form, which
// ../FORMAT.md describes. Where what is lost comes again, as package ef21 has it,
// numbers are rounded to the nearest level instead. The random numbers depend on a seed alone: the same
// seed gives the same bytes, and callers use another one for each message.
// Nothing is remembered from one message to the next.
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

// Norm is what the numbers of a bucket are divided by.
type Norm uint8

const (
	// MaxNorm is the largest magnitude: QSGD as its authors implemented it. Its
	// variance is less than that of the other.
	MaxNorm Norm = iota
	// L2Norm is the square root of the sum of squares: QSGD as its authors proved
	// it.
	L2Norm
)

// Config says how numbers are rounded.
type Config struct {
	Bits   int // for each number, its sign included: 1 to 8
	Bucket int // numbers that share a norm: 8 to 65536
	Norm   Norm
	// Nearest rounds to the nearest level, without chance: right not on average, but
	// by the least error. It takes 2 bits or more.
	Nearest bool
}

// DefaultConfig is that of Alistarh and others and of Sun and others.
var DefaultConfig = Config{Bits: 8, Bucket: 512}

const (
	leastBucket = 8
	mostBucket  = 1 << 16
)

// Validate says what is wrong with c.
func (c Config) Validate() error {
	switch {
	case c.Bits < 1 || c.Bits > 8:
		return fmt.Errorf("quantize: %d bits; it must be 1 to 8", c.Bits)
	case c.Bucket < leastBucket || c.Bucket > mostBucket:
		return fmt.Errorf("quantize: buckets of %d; it must be %d to %d", c.Bucket, leastBucket, mostBucket)
	case c.Nearest && c.Bits < 2:
		return fmt.Errorf("quantize: %d bits, to the nearest level; it must be 2 to 8", c.Bits)
	case c.Norm > L2Norm:
		return fmt.Errorf("quantize: unknown norm %d", c.Norm)
	}
	return nil
}

// piece is how many numbers are done at a time: their codes end with a whole
// byte whatever their width.
const piece = 512

// Append appends the wire form of numbers. Buckets that cannot be rounded go as
// they are: those with a NaN or an infinity, and those with a norm at the very
// ends of float32's range (of float64's for float64). asIs is how many numbers
// these have.
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
		norm, ok := c.normOf(kind, bucket)
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

// normOf returns the norm of a bucket as it goes on the wire; ok is false where
// it does not serve.
func (c Config) normOf(kind element.Kind, bucket []byte) (norm float64, ok bool) {
	largest := vector.MaxMagnitude(kind, bucket)
	if largest == 0 || largest-largest != 0 {
		return 0, largest == 0
	}
	norm = largest
	if c.Norm == L2Norm {
		sum := 0.0
		for i := range len(bucket) / kind.Size() {
			v := kind.At(bucket, i) / largest
			sum += float64(v * v)
		}
		norm = max(float64(math.Sqrt(sum)*largest), largest)
	}
	least, most := 0x1p-95, math.MaxFloat32/2
	if kind == element.Float64 {
		least, most = 0x1p-1000, math.MaxFloat64/2
	} else {
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

// Decode appends to dst the count numbers of a kind that [Config.Append] wrote,
// and returns what follows them in src.
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

// readBucket appends n numbers of a bucket to dst.
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
