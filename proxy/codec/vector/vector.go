// Package vector has the loops over values in which the codecs spend their time: adding a
// gradient to a residual and comparing with a threshold, selecting the k-th largest,
// scaling and rounding, packing bits.
//
// All slices are the caller's; gradients and values are the little-endian bytes of a frame,
// at any alignment. Results go to these slices and to masks. If the processor can (AVX2),
// generated assembly does the work (gen writes it); portable Go code does it elsewhere and
// for the ends of slices, and gives identical bits: two hosts with different processors
// must compute the same copies. Tests compare the two.
//
// Each function has two parts. The one in vector_amd64.go does as many numbers as the
// assembly takes and returns how many that were; the one beside the exported name does the
// rest. The functions keep no state and are safe for concurrent use on different slices.
// Their callers are the packages threshold, quantize, ef21, rows, slim, sparsewords,
// unchanged, aggregate and spare.
//
// A function has assembly if a whole encode or decode of some codec takes at least a tenth
// longer with the best plain Go in its place. These are the factors, with 4 MiB of values
// and the two by turns, of threshold (adding 4 to 8, of 16-bit numbers 2, of float64 4),
// ef21 (subtracting 2 to 3, rounding to the nearest level 1.3 to 3.7), quantize (the largest
// magnitude 1.5 to 1.9, rounding 1.8 and more, and back 4.5, of float64 6, of 16-bit numbers
// 1.9), values in 16 bits (to and from float16 10 and more, to bfloat16 6, from it 1.7), rows
// (sums 1.3, counts 1.4 to 1.9, masks 1.2), sparsewords and unchanged (differences 1.1 to
// 2.7), and of a push that is added to a spare server's value (sums 1.4 to 3.5). What gave
// less is plain Go: comparing alone, scaling of float64, and what joins codes, which is in
// package sparse.
package vector

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Float is a type in which residuals are kept.
type Float interface{ float32 | float64 }

// add is the portable form of the Add functions. The conversion of the sum forbids the
// compiler to fuse the addition with another operation, which would round differently.
func add[R Float](e []R, g func(i int) R, tau R, mask []uint64, at []uint32, first int) []uint32 {
	for i := range e {
		e[i] = R(e[i] + g(i))
	}
	return Compare(e, tau, mask, at, first)
}

// AddFloat32 adds the float32 numbers of g to e and sets bit i of mask unless |e[i]| < tau
// afterwards, so that numbers that are not finite are in the mask. mask has a word for each
// 64 numbers, begun or whole, and is overwritten. For each bit that it sets it appends
// first + i to at, in ascending order. This is lines 2 and 9 of DCT-DP's Algorithm 1 in one
// pass over the memory.
func AddFloat32(e []float32, g []byte, tau float32, mask []uint64, at []uint32, first int) []uint32 {
	at, done := addFloat32(e, g, tau, mask, at, first)
	g = g[done*4:]
	return add(e[done:], func(i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(g[i*4:])) },
		tau, mask[done/64:], at, first+done)
}

// AddFloat16 is [AddFloat32] for a gradient of float16 numbers.
func AddFloat16(e []float32, g []byte, tau float32, mask []uint64, at []uint32, first int) []uint32 {
	at, done := addFloat16(e, g, tau, mask, at, first)
	g = g[done*2:]
	return add(e[done:], func(i int) float32 { return element.FromFloat16(binary.LittleEndian.Uint16(g[i*2:])) },
		tau, mask[done/64:], at, first+done)
}

// AddBFloat16 is [AddFloat32] for a gradient of bfloat16 numbers.
func AddBFloat16(e []float32, g []byte, tau float32, mask []uint64, at []uint32, first int) []uint32 {
	at, done := addBFloat16(e, g, tau, mask, at, first)
	g = g[done*2:]
	return add(e[done:], func(i int) float32 { return element.FromBFloat16(binary.LittleEndian.Uint16(g[i*2:])) },
		tau, mask[done/64:], at, first+done)
}

// AddFloat64 is [AddFloat32] for residual and gradient of float64 numbers.
func AddFloat64(e []float64, g []byte, tau float64, mask []uint64, at []uint32, first int) []uint32 {
	at, done := addFloat64(e, g, tau, mask, at, first)
	g = g[done*8:]
	return add(e[done:], func(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(g[i*8:])) },
		tau, mask[done/64:], at, first+done)
}

// Compare sets mask and appends to at as [AddFloat32] does, and changes nothing else. It
// serves where a threshold changes, which is seldom.
func Compare[R Float](e []R, tau R, mask []uint64, at []uint32, first int) []uint32 {
	for w := range mask {
		part := e[w*64 : min(w*64+64, len(e))]
		word := uint64(0)
		for _, v := range part {
			// No branch, which a processor could not predict.
			above, below := uint64(1<<63), uint64(1<<63)
			if v < tau {
				above = 0
			}
			if v > -tau {
				below = 0
			}
			word = word>>1 | above | below
		}
		word >>= 64 - len(part)
		mask[w] = word
		for ; word != 0; word &= word - 1 {
			at = append(at, uint32(first+w*64+bits.TrailingZeros64(word)))
		}
	}
	return at
}
