package quantize

import (
	"unsafe"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// room holds a piece of a bucket as float32 numbers, the kind that the loops of package
// vector take.
type room [piece]float32

// bytes returns the first n numbers of the room as bytes. The order is that of
// little-endian machines, the only ones that psidecar is built for.
func (r *room) bytes(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), 4*n)
}

// narrow returns a piece's numbers as float32, and the norm that they have then. Numbers of
// 64 bits may lie outside of float32's range, so they are scaled by their norm first,
// which then is 1; float32 numbers are returned as they are, without a copy.
func (r *room) narrow(kind element.Kind, part []byte, norm float64) (floats []byte, itsNorm float32) {
	floats = r.bytes(len(part) / kind.Size())
	switch kind {
	case element.Float64:
		by, wide := 1/norm, unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(part))), len(part)/8)
		for i, v := range wide {
			r[i&(piece-1)] = float32(v * by)
		}
		return floats, 1
	case element.Float16:
		vector.FromFloat16(floats, part)
	case element.BFloat16:
		vector.FromBFloat16(floats, part)
	default:
		floats = part
	}
	return floats, float32(norm)
}

// appendBucket rounds a bucket's numbers and appends their codes. index is the position of
// the bucket's first number in the whole vector: the random number of each value depends on
// it, so the result does not depend on how the vector is cut into pieces.
func (c Config) appendBucket(dst []byte, r *room, kind element.Kind, bucket []byte, norm float64, random vector.Random, index uint32) []byte {
	for size := kind.Size(); len(bucket) > 0; index += piece {
		part := bucket[:min(len(bucket), piece*size)]
		bucket = bucket[len(part):]
		floats, norm := r.narrow(kind, part, norm)
		if c.Nearest {
			dst = vector.QuantizeNearest(dst, floats, c.Bits, norm)
			continue
		}
		dst = vector.Quantize(dst, floats, c.Bits, norm, random, index)
	}
	return dst
}
