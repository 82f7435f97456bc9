// Package ef21 sends, of a vector that changes, what differs most from the receiver's copy
// of it, or the differences rounded: EF21-P (Gruntkowska, Tyurin and Richtarik 2023,
// "EF21-P and Friends"), which is error feedback for what servers send,
//
//	w' = w + C(x - w)
//
// with x the server's vector, w the copy that both ends have, and C a compressor that keeps
// part of the difference: what it leaves out is in the next difference again, so nothing is
// lost.
//
// The encoder gets x and the copy, writes C(x - w), and turns the copy into w'; at the
// other end the copy becomes the same to the last bit, on any processor. Both are
// [Encoder.Append] and [Decoder.Decode], which know nothing of keys, links or versions.
// That the two copies are the same to begin with, and that no message between them is lost,
// is the business of the caller, package values, which sends a checksum along. The wire
// form is described in ../FORMAT.md.
package ef21

import (
	"errors"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/quantize"
)

// ErrCorrupt is wrapped by all errors of decoding.
var ErrCorrupt = errors.New("ef21: corrupt differences")

// Config is the compressor C. Sparsity, Bits or both are set.
type Config struct {
	// Sparsity is the share of the numbers that is left out, those that differ least; 0:
	// none.
	Sparsity float64
	// Bits is the width of each difference that goes, rounded to the nearest level in
	// buckets of Bucket numbers; 0: numbers go as they are.
	Bits, Bucket int
	// Half rounds differences to 16 bits if Bits is 0: to bfloat16, which has the range
	// that differences need.
	Half bool
	// Packed packs the codes of Bits without loss, if there is no sparsity; see
	// packer. Only the bytes differ, not the values that they stand for.
	Packed bool
}

func (c Config) rounding() quantize.Config {
	return quantize.Config{Bits: c.Bits, Bucket: c.Bucket, Nearest: true}
}

// form is the first byte of an encoded difference.
type form byte

const (
	formNumbers form = iota // a vector of sparse: numbers that take the place of the copy's
	formHalves              // header of a vector of sparse; differences as bfloat16, as sparse has values
	formSome                // header of a vector of sparse; differences by quantize
	formAll                 // uvarint numbers in a chunk; of each chunk the differences by quantize
	formPacked              // likewise, in blocks of whole chunks
)

// chunk is how many numbers are done at a time, so that what the first step wrote is still
// in the processor's cache for the next. It is a multiple of 64.
const chunk = 4096

// Threshold is what a vector's sender remembers of the threshold above which differences
// go. Finding one costs about as much as encoding, so it is used until too much or too
// little passes it. Its zero value is ready; call [Threshold.Reset] when the compressor
// changes.
type Threshold struct {
	tau   float64
	known bool
}

// Reset has the next vector compute the threshold.
func (t *Threshold) Reset() { t.known = false }

// slack is how far the share that was sent may be from the configured one before the
// threshold is computed again.
const slack = 0.1

// judge has the next vector renew the threshold if sent numbers of n were too far from the
// share that should go. Small counts may vary by twice their deviation more.
func (t *Threshold) judge(sent, n int, sparsity float64) {
	want := (1 - sparsity) * float64(n)
	chance := 2 * math.Sqrt(want)
	s := float64(sent)
	t.known = sent > 0 && s <= want*(1+slack)+chance && s >= want*(1-slack)-chance
}

// limit is what differences are compared with. With the threshold 0 zeros would be sent,
// which say nothing.
func (t *Threshold) limit() float32 {
	return max(float32(t.tau), math.SmallestNonzeroFloat32)
}
