package values

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/quantize"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/unchanged"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A Receiver decodes the messages that the [Sender] at the other end of the link
// encoded. It is not safe for concurrent use, except for Abort. Its state (slim's
// layers, answers, values by key, copies) is changed only by the parts that it reads,
// in order, and is bounded by limits that the sender keeps to as well; memory is
// reserved before a part can use it.
type Receiver struct {
	codec   *Codec
	compact *compact.Receiver
	loan    *relay.Loan     // of the message in hand, also for compact
	state   keylist.Account // of the remembered values
	counted int             // bytes counted in state
	vector  sparse.Vector
	layers  map[int]*known // of slim, by number
	left    int            // bytes that may still be remembered for layers of slim
	last    *unchanged.Receiver
	keyed   byKey
	copied  copied
	keys    pslite.Keys // of the message at hand
	// Of the message at hand, for activations: its frames, and which pull it answers,
	// once that was looked up.
	frames   [][]byte
	decoded  pslite.Message
	detector pslite.Detector
	sought   bool
	answers  asked
	link     relay.Link
	close    func()
}

// newReceiver makes the Receiver of a link's end. Its bounds are those that the
// Sender at the other end counts by: constants of this package and pullLimit, which
// the offer has.
func newReceiver(c *Codec, l relay.Link, cr *compact.Receiver) *Receiver {
	r := &Receiver{codec: c, compact: cr, loan: cr.Loan(), layers: map[int]*known{}, left: pullBytes, link: l}
	r.state = keylist.NewAccount(r.loan)
	r.keyed = newByKey(keyBytes)
	r.copied = newCopied(c.pullLimit())
	r.last = unchanged.NewReceiver(unchanged.Limits{Bytes: pullBytes, Answers: unchanged.DefaultLimits.Answers})
	r.close = sync.OnceFunc(func() {
		r.Release()
		r.state.Close()
		cr.Close()
		c.countLink(l, -1)
	})
	return r
}

// Close implements [relay.Receiver].
func (r *Receiver) Close() { r.close() }

// Release implements [relay.Releaser]: the frames that Decode returned are not used any
// more.
func (r *Receiver) Release() { r.compact.Release() }

// Waits implements [relay.Waiter]. Only a message that is compact's alone can wait for
// shared values.
func (r *Receiver) Waits(head []byte) bool {
	return len(head) > 1 && head[len(head)-1] == modeCompact && r.compact.Waits(head)
}

// Abort implements [relay.Aborter].
func (r *Receiver) Abort() { r.compact.Abort() }

// Decode implements [relay.Receiver]. The last byte of a head is its mode, so that
// compact's head need not be moved to make room for one.
func (r *Receiver) Decode(head []byte) (frames [][]byte, plain uint32, err error) {
	r.Release()
	r.loan.Begin(len(head))
	defer r.loan.End()
	if len(head) == 0 {
		return nil, 0, fmt.Errorf("%w: an empty head", ErrCorrupt)
	}
	mode, head := head[len(head)-1], head[:len(head)-1]
	switch {
	case mode == modeCompact:
		return r.compact.Decode(head)
	case mode == modeOwn:
		frames, err = readOwn(head)
		return frames, 0, err
	case mode == modeAnswer:
		return nil, 0, r.readAnswer(head)
	case mode == modeAsks, mode == modeWhole:
		if frames, plain, err = r.compact.Decode(head); err == nil {
			r.notePull(frames, mode == modeAsks)
		}
		return frames, plain, err
	case mode != modeSection || len(head) < 4:
		return nil, 0, fmt.Errorf("%w: a head of mode %d", ErrCorrupt, mode)
	}
	size := binary.LittleEndian.Uint32(head[len(head)-4:])
	head = head[:len(head)-4]
	if uint64(size) > uint64(len(head)) {
		return nil, 0, fmt.Errorf("%w: a section of %d bytes in %d", ErrCorrupt, size, len(head))
	}
	section := head[len(head)-int(size):]
	if frames, plain, err = r.compact.Decode(head[:len(head)-int(size)]); err != nil {
		return nil, 0, err
	}
	// Package compact has left one frame open, the values, which the section fills.
	if bits.OnesCount32(plain) != 1 || plain >= 1<<len(frames) {
		return nil, 0, fmt.Errorf("%w: a section for a message without values", ErrCorrupt)
	}
	at := bits.TrailingZeros32(plain)
	r.keys, r.frames, r.sought, r.answers = nil, frames[:at], false, asked{}
	if at > 0 {
		r.keys = pslite.Keys(frames[at-1]) // compact decodes them before the values
	}
	if frames[at], err = r.values(section); err != nil {
		return nil, 0, err
	}
	return frames, 0, nil
}

// values reads a section and returns the values frame, in memory borrowed until
// Release. Whatever is decoded is decoded in the place that it has there.
func (r *Receiver) values(section []byte) ([]byte, error) {
	total, src, err := uvarint(section)
	if err != nil {
		return nil, err
	}
	if total == 0 {
		return nil, fmt.Errorf("%w: a section without values", ErrCorrupt)
	}
	out, err := r.loan.Borrow(total)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	out = out[:total]
	// Every part takes bytes of src, so this ends whatever they claim.
	for at := 0; at < total; {
		n, rest, err := r.part(src, out[at:])
		if err != nil {
			return nil, err
		}
		at, src = at+n, rest
	}
	if len(src) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the values", ErrCorrupt, len(src))
	}
	return out, nil
}

// part reads one part into the beginning of out. It returns how many bytes of out it
// has filled, at most all of them, and what follows the part in src. Parts of 16-bit
// values and of rows contain another part, for which part is called again.
func (r *Receiver) part(src, out []byte) (n int, rest []byte, err error) {
	if len(src) == 0 {
		return 0, nil, fmt.Errorf("%w: it ends before the values are complete", ErrCorrupt)
	}
	kind, src := part(src[0]), src[1:]
	// These change what is remembered. Memory for the most that they can add is taken
	// before, as they may block for it only while nothing has changed.
	if kind == partByKey || kind == partLearned || kind == partSlim || kind == partRecalled || kind == partCopied {
		if err = r.mayRemember(len(out)); err != nil {
			return 0, nil, err
		}
		defer r.countState()
	}
	switch kind {
	// The kind alone decides: parts of a message may differ, as rules may differ
	// between its keys.
	case partPlain:
		return plainPart(src, out)
	case partSparse:
		return r.sparsePart(src, out, sparse.DecodeValues)
	case partQuantized:
		return quantizedPart(src, out)
	case partMixed:
		return r.sparsePart(src, out, quantize.Decode)
	case partRecalled:
		values, rest, err := r.last.Decode(src)
		if err != nil {
			return 0, nil, corrupt(err)
		}
		n, err = fill(out, values)
		return n, rest, err
	case partByKey:
		return r.keyed.read(src, r.keys, out)
	case partCopied:
		return r.copied.read(src, r.keys, out)
	case partHalved:
		return r.halvedPart(src, out)
	case partHalvedSparse:
		return r.sparsePart(src, out, decodeHalves)
	case partRows:
		return r.readRows(src, out)
	case partLearned:
		return r.learn(src, out)
	case partSlim, partFilled:
		return r.round(kind, src, out)
	}
	return 0, nil, fmt.Errorf("%w: a part of kind %d", ErrCorrupt, kind)
}

// sparsePart reads a vector: its positions, then its values by decode. Numbers
// without a value become zero, since what was left out of a push waits at the sender
// and adds nothing yet.
func (r *Receiver) sparsePart(src, out []byte, decode decodeValues) (n int, rest []byte, err error) {
	count, src, err := r.vector.DecodeHeader(src, len(out))
	if err != nil {
		return 0, nil, corrupt(err)
	}
	return expand(&r.vector, count, src, out, decode)
}

func corrupt(err error) error { return fmt.Errorf("%w: %w", ErrCorrupt, err) }

// plainPart reads values that go as they are: their size in bytes, then the bytes.
func plainPart(src, out []byte) (n int, rest []byte, err error) {
	if n, src, err = uvarint(src); err != nil {
		return 0, nil, err
	}
	values, rest, err := cut(src, n)
	if err != nil {
		return 0, nil, err
	}
	n, err = fill(out, values)
	return n, rest, err
}

// quantizedPart reads values that were all rounded. They are decoded in place: out
// has room for exactly count numbers.
func quantizedPart(src, out []byte) (n int, rest []byte, err error) {
	if len(src) == 0 || !element.Kind(src[0]).Valid() {
		return 0, nil, fmt.Errorf("%w: rounded values of no known kind", ErrCorrupt)
	}
	kind := element.Kind(src[0])
	count, src, err := uvarint(src[1:])
	if err != nil {
		return 0, nil, err
	}
	if count == 0 || count > len(out)/kind.Size() {
		return 0, nil, fmt.Errorf("%w: %d numbers of %v where %d bytes are wanted", ErrCorrupt, count, kind, len(out))
	}
	values, rest, err := quantize.Decode(out[:0:count*kind.Size()], kind, count, src)
	if err != nil {
		return 0, nil, corrupt(err)
	}
	return len(values), rest, nil
}

// fill copies values to the beginning of out, and refuses more than fit.
func fill(out, values []byte) (int, error) {
	if len(values) == 0 || len(values) > len(out) {
		return 0, fmt.Errorf("%w: %d bytes of values where %d are wanted", ErrCorrupt, len(values), len(out))
	}
	return copy(out, values), nil
}

// decodeValues appends to dst the count numbers of a kind at the beginning of src, and
// returns what follows them. It needs no more of dst than they take.
type decodeValues func(dst []byte, kind element.Kind, count int, src []byte) (values, rest []byte, err error)

// expand reads the count values of v at the beginning of src, and fills the beginning of out
// with the whole of v. The values are decoded to its end, from where they go to their places:
// equal numbers take next to nothing on the wire, so that a short message can claim very many,
// and they take no memory of their own.
func expand(v *sparse.Vector, count int, src, out []byte, decode decodeValues) (n int, rest []byte, err error) {
	n = v.N * v.Kind.Size()
	if n == 0 || n > len(out) {
		return 0, nil, fmt.Errorf("%w: %d bytes of values where %d are wanted", ErrCorrupt, n, len(out))
	}
	at := n - count*v.Kind.Size()
	if v.Values, rest, err = decode(out[at:at:n], v.Kind, count, src); err != nil {
		return 0, nil, corrupt(err)
	}
	v.Expand(out[:n])
	v.Values = nil
	return n, rest, nil
}

// mayRemember reserves memory for everything that a part with at most most bytes of
// values may have the receiver remember. It may block, and is called before the part
// changes any state.
func (r *Receiver) mayRemember(most int) error {
	n := most + r.keys.Len()*cellBytes
	if err := r.state.Grow(n); err != nil {
		return fmt.Errorf("values: %w", err)
	}
	r.counted += n
	return nil
}

// countState returns what mayRemember took and the part did not need.
func (r *Receiver) countState() {
	n := r.keyed.limit - r.keyed.left + r.copied.limit - r.copied.left + r.last.Bytes() + pullBytes - r.left
	r.state.Shrink(r.counted - n)
	r.counted = n
}
