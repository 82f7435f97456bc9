// Package ef21 sends of a vector that changes what differs most from what the
// receiver has of it, or the differences rounded: EF21-P (Gruntkowska, Tyurin and
// Richtarik 2023, "EF21-P and Friends"), which is error feedback for what servers
// send,
//
//	w' = w + C(x - w)
//
// with x the server's vector, w the copy that both ends have, and C a compressor
// that takes away part of the error: what it leaves out is in the next difference
// again, and nothing is lost.
//
// In come x and the copy, out goes C(x - w), and the copy becomes w'; at the other
// end the copy becomes the same, to the last bit, on any processor. Both are
// [Encoder.Append] and [Decoder.Decode], which know nothing of keys, links or
// versions: that the two copies are one and the same is the business of the caller,
// package values. The wire form is in ../FORMAT.md.
package ef21

import (
	"errors"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/quantize"
)

// ErrCorrupt is wrapped by all errors of decoding.
var ErrCorrupt = errors.New("ef21: corrupt differences")

// Config is the compressor C. One of Sparsity and Bits is set, or both.
type Config struct {
	// Sparsity is the share of the numbers that is left out, those that differ
	// least; 0: none is.
	Sparsity float64
	// Bits are those of each difference that goes, rounded to the nearest of so many
	// levels in buckets of Bucket; 0: numbers go as they are.
	Bits, Bucket int
	// Half has differences rounded to 16 bits where Bits are 0: to bfloat16, which
	// has the range that differences need.
	Half bool
	// Packed has what Bits make of all differences, without a sparsity, go in fewer
	// bytes, without loss: see packer. What is left out is the same.
	Packed bool
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	switch {
	case !(c.Sparsity >= 0 && c.Sparsity < 1):
		return fmt.Errorf("ef21: sparsity %v; it must be from 0 to below 1", c.Sparsity)
	case c.Sparsity == 0 && c.Bits == 0:
		return errors.New("ef21: neither a sparsity nor bits: nothing would be left out")
	case c.Bits != 0:
		return c.rounding().Validate()
	}
	return nil
}

func (c Config) rounding() quantize.Config {
	return quantize.Config{Bits: c.Bits, Bucket: c.Bucket, Nearest: true}
}

// form is the first byte of what is sent.
type form byte

const (
	formNumbers form = iota // a vector of sparse: numbers that take the place of the copy's
	formHalves              // header of a vector of sparse; differences as bfloat16, as sparse has values
	formSome                // header of a vector of sparse; differences by quantize
	formAll                 // uvarint numbers in a chunk; of each chunk the differences by quantize
	formPacked              // likewise, in blocks of whole chunks
)

// chunk is how many numbers are done at a time, so that what the first step wrote
// is still in the processor's cache for the next. It is a multiple of 64.
const chunk = 4096

// Threshold is what a vector's sender keeps of the threshold above which
// differences go. Its zero value is ready; [Threshold.Reset] where the compressor
// changes.
type Threshold struct {
	tau   float64
	known bool
}

// Reset has the threshold recomputed with the next vector.
func (t *Threshold) Reset() { t.known = false }

// slack is how far what goes may be from what should before the threshold is
// recomputed.
const slack = 0.1

// judge has the next vector renew the threshold where this one, of which so many
// of n numbers went, was too far from what should go; small numbers vary.
func (t *Threshold) judge(sent, n int, sparsity float64) {
	want := (1 - sparsity) * float64(n)
	chance := 2 * math.Sqrt(want)
	s := float64(sent)
	t.known = sent > 0 && s <= want*(1+slack)+chance && s >= want*(1-slack)-chance
}

// limit is what differences are compared with. The threshold 0 would send zeros,
// which say nothing.
func (t *Threshold) limit() float32 {
	return max(float32(t.tau), math.SmallestNonzeroFloat32)
}
