package values

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/quantize"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// feedsBack reports whether pulls go by error feedback.
func (r *Rule) feedsBack() bool { return r.PullThreshold > 0 || r.PullQuantize > 0 }

// checkPulls is the part of Check about pulls with error feedback and the wire.
func (r *Rule) checkPulls() error {
	switch {
	case !(r.PullThreshold >= 0 && r.PullThreshold < 1):
		return fmt.Errorf("pull-threshold %v: want a sparsity from 0 (off) to below 1, such as 0.95", r.PullThreshold)
	case r.PullQuantize < 0 || r.PullQuantize == 1 || r.PullQuantize > 8:
		return fmt.Errorf("pull-quantize %d: want 2 to 8 bits, or 0 (off)", r.PullQuantize)
	case r.feedsBack() && (r.Slim != nil || r.Unchanged):
		return errors.New("pull-threshold and pull-quantize exclude slim and unchanged: each selects the values of a pull")
	case r.Wire != "" && !wireKind(r.Wire).Valid():
		return fmt.Errorf("wire %q: want bf16 or fp16", r.Wire)
	case r.Wire != "" && r.Slim != nil:
		return errors.New("wire and slim exclude each other: with slim, use quantize")
	}
	return nil
}

// wireKind returns the kind of a rule's Wire, an invalid one if it names none.
func wireKind(wire string) element.Kind {
	switch wire {
	case "bf16":
		return element.BFloat16
	case "fp16":
		return element.Float16
	}
	return 255
}

// mostFloat16 is the largest finite float16.
const mostFloat16 = 65504

// halves16 reports whether a rule sends a piece's values in 16 bits, and counts why
// that is impossible.
func (s *Sender) halves16(p *piece, r *Rule) bool {
	if r.Wire == "" || p.kind != element.Float32 {
		return false
	}
	if !s.theirs.Wire {
		s.codec.counts.why(ReasonPeer)
	}
	return s.theirs.Wire
}

// halve sets s.halves to float32 values rounded to the nearest 16-bit number, ties to
// even. ok is false if a value is beyond the range of float16, where rounding would
// change it by more than half a unit in the last place; bfloat16 has the range of
// float32.
func (s *Sender) halve(r *Rule, values []byte) (ok bool) {
	kind := wireKind(r.Wire)
	if most := vector.MaxMagnitude(element.Float32, values); kind == element.Float16 && !(most <= mostFloat16) {
		s.codec.counts.why(ReasonNotRounded)
		return false
	}
	s.halves = appendRounded(s.halves[:0], kind, values)
	return true
}

// appendRounded appends float32 values as numbers of 16 bits. NaNs and infinities
// keep their meaning.
func appendRounded(dst []byte, kind element.Kind, values []byte) []byte {
	// The rounding functions leave in their input what rounding took, and the message's
	// values must not change.
	round, part := vector.RoundToBFloat16, [1024]float32{}
	if kind == element.Float16 {
		round = vector.RoundToFloat16
	}
	start, n := len(dst), len(values)/4
	dst = slices.Grow(dst, 2*n)[:start+2*n]
	for out := dst[start:]; len(values) > 0; {
		k := min(len(values)/4, len(part))
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&part)), 4*len(part)), values[:4*k])
		round(out, part[:k]) // which leaves in part what rounding took
		values, out = values[4*k:], out[2*k:]
	}
	return dst
}

// appendWire appends a piece's values in 16 bits if the rule says so. With formPlain it
// has appended nothing.
func (s *Sender) appendWire(head []byte, p *piece, r *Rule, values []byte) (all []byte, form, sent int) {
	if !s.halves16(p, r) || !s.halve(r, values) {
		return head, formPlain, p.values()
	}
	head = append(head, byte(partHalved), byte(wireKind(r.Wire)))
	return appendPlain(head, s.halves), formWire, p.values()
}

// appendVector appends the chosen values of a piece, rounded if the rule says so.
func (s *Sender) appendVector(head []byte, v *sparse.Vector, r *Rule) []byte {
	switch {
	case r.Quantize == 0 && r.Wire != "" && v.Kind == element.Float32 && s.theirs.Wire && s.halve(r, v.Values):
		head = v.AppendHeader(append(head, byte(partHalvedSparse)))
		return appendHalves(head, wireKind(r.Wire), s.halves)
	case r.Quantize == 0:
		return v.Append(append(head, byte(partSparse)))
	}
	head = v.AppendHeader(append(head, byte(partMixed)))
	return s.quantize(head, r, v.Kind, v.Values)
}

// quantize appends numbers rounded by a rule. Each call takes another seed, so that
// errors are independent.
func (s *Sender) quantize(head []byte, r *Rule, kind element.Kind, values []byte) []byte {
	room := &s.pushing
	if room.seed == 0 {
		room.seed = rand.Uint64()
	}
	room.seed++
	head, asIs := quantize.Config{Bits: r.Quantize, Bucket: r.QuantizeBucket}.Append(head, kind, values, room.seed)
	if asIs > 0 {
		s.codec.counts.why(ReasonNotRounded)
	}
	return head
}

// appendHalves appends a vector's values of 16 bits, with their kind.
func appendHalves(head []byte, kind element.Kind, halves []byte) []byte {
	return sparse.AppendValues(append(head, byte(kind)), kind, halves, true)
}

// decodeHalves reads what appendHalves wrote, as float32 numbers.
func decodeHalves(dst []byte, kind element.Kind, count int, src []byte) (values, rest []byte, err error) {
	half, src, err := halfKind(src)
	if err != nil {
		return nil, nil, err
	}
	if kind != element.Float32 {
		return nil, nil, fmt.Errorf("%w: values of %v in 16 bits", ErrCorrupt, kind)
	}
	start := len(dst)
	dst = slices.Grow(dst, 4*count)[:start+4*count]
	// They are widened in place, from the upper half of their room to all of it: each
	// is read before its place is written.
	halves, rest, err := sparse.DecodeValues(dst[start+2*count:start+2*count:start+4*count], half, count, src)
	if err != nil {
		return nil, nil, err
	}
	widen(half, dst[start:], halves)
	return dst, rest, nil
}

func halfKind(src []byte) (element.Kind, []byte, error) {
	if len(src) == 0 || element.Kind(src[0]) != element.Float16 && element.Kind(src[0]) != element.BFloat16 {
		return 0, nil, fmt.Errorf("%w: values of 16 bits of no known kind", ErrCorrupt)
	}
	return element.Kind(src[0]), src[1:], nil
}

func widen(kind element.Kind, dst, halves []byte) {
	if kind == element.Float16 {
		vector.FromFloat16(dst, halves)
	} else {
		vector.FromBFloat16(dst, halves)
	}
}

// halvedPart reads a part with values of 16 bits and widens them to float32. The
// values themselves are a part of any other kind, read into the upper half of out and
// widened from there: each is read before its place is written. Halved parts must not
// nest: they would need the place of other values.
func (r *Receiver) halvedPart(src, out []byte) (n int, rest []byte, err error) {
	kind, src, err := halfKind(src)
	if err != nil {
		return 0, nil, err
	}
	if len(src) == 0 || part(src[0]) == partHalved {
		return 0, nil, fmt.Errorf("%w: values of 16 bits without a part", ErrCorrupt)
	}
	halves := out[len(out)-len(out)/2:]
	if n, rest, err = r.part(src, halves); err != nil {
		return 0, nil, err
	}
	if n%2 != 0 {
		return 0, nil, fmt.Errorf("%w: %d bytes of values of 16 bits", ErrCorrupt, n)
	}
	widen(kind, out[:2*n], halves[:n])
	return 2 * n, rest, nil
}
