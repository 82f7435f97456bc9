package quantize

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// room is where a piece of a bucket becomes float32 numbers, and is made of
// them.
type room [piece]float32

// bytes are n numbers of the room as bytes, in the order of little endian
// machines, the only ones that psidecar is built for.
func (r *room) bytes(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), 4*n)
}

// widen returns a piece's numbers, of a kind other than float64, as float32
// numbers.
func (r *room) widen(kind element.Kind, part []byte) []byte {
	switch kind {
	case element.Float16:
		floats := r.bytes(len(part) / 2)
		vector.FromFloat16(floats, part)
		return floats
	case element.BFloat16:
		floats := r.bytes(len(part) / 2)
		vector.FromBFloat16(floats, part)
		return floats
	}
	return part
}

// pieces calls do with the pieces of numbers of so many bytes.
func pieces(numbers []byte, size int, do func(part []byte)) {
	for len(numbers) > 0 {
		part := numbers[:min(len(numbers), piece*size)]
		numbers = numbers[len(part):]
		do(part)
	}
}

// maxMagnitude is the largest magnitude; a NaN if there is one.
func (r *room) maxMagnitude(kind element.Kind, bucket []byte) float64 {
	if kind == element.Float64 {
		most := uint64(0) // NaNs are larger than all numbers
		for ; len(bucket) >= 8; bucket = bucket[8:] {
			most = max(most, binary.LittleEndian.Uint64(bucket)&^(1<<63))
		}
		return math.Float64frombits(most)
	}
	most := uint32(0)
	pieces(bucket, kind.Size(), func(part []byte) {
		most = max(most, math.Float32bits(vector.MaxMagnitude(r.widen(kind, part))))
	})
	return float64(math.Float32frombits(most))
}

// appendBucket rounds the numbers of a bucket and appends their codes. Numbers
// of 64 bits are divided by the norm first.
func (c Config) appendBucket(dst []byte, r *room, kind element.Kind, bucket []byte, norm float64, random vector.Random, index uint32) []byte {
	if kind == element.Float32 {
		return vector.Quantize(dst, bucket, c.Bits, float32(norm), random, index)
	}
	pieces(bucket, kind.Size(), func(part []byte) {
		n := len(part) / kind.Size()
		if kind == element.Float64 {
			floats := r.bytes(n)
			for i := range n {
				v := math.Float64frombits(binary.LittleEndian.Uint64(part[8*i:])) / norm
				binary.LittleEndian.PutUint32(floats[4*i:], math.Float32bits(float32(v)))
			}
			dst = vector.Quantize(dst, floats, c.Bits, 1, random, index)
		} else {
			dst = vector.Quantize(dst, r.widen(kind, part), c.Bits, float32(norm), random, index)
		}
		index += uint32(n)
	})
	return dst
}

// putNumbers makes dst the numbers that the codes of a bucket stand for.
func (r *room) putNumbers(dst []byte, kind element.Kind, bits int, norm float64, src []byte) {
	unit := norm / float64(vector.Levels(bits))
	pieces(dst, kind.Size(), func(part []byte) {
		n := len(part) / kind.Size()
		floats := r.bytes(n)
		switch kind {
		case element.Float16:
			vector.Dequantize(floats, src, bits, float32(norm))
			vector.RoundToFloat16(part, r[:n])
		case element.BFloat16:
			vector.Dequantize(floats, src, bits, float32(norm))
			vector.RoundToBFloat16(part, r[:n])
		default: // with the number of levels as the norm places are whole
			vector.Dequantize(floats, src, bits, float32(vector.Levels(bits)))
			for i := range n {
				place := math.Float32frombits(binary.LittleEndian.Uint32(floats[4*i:]))
				binary.LittleEndian.PutUint64(part[8*i:], math.Float64bits(float64(place)*unit))
			}
		}
		src = src[n*bits/8:]
	})
}
