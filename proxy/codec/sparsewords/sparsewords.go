// Package sparsewords encodes values frames most of whose words are one and the same, zero
// as a rule: the gradient of an embedding table of which a step touched few rows, or a
// parameter that training has hardly reached. It is lossless, to the sign of a zero and the
// payload of a NaN, and keeps no state from one frame to the next.
//
// [Encoder.Append] takes the body of a values frame, samples its words, and encodes it if
// that makes it at most half as long. A [Decoder] restores the body into memory of the
// caller's, in two steps, so that the caller can reserve it in between. Package compact
// calls both. Lists in which several different words repeat are the business of keylist's
// word lists.
//
// An encoded body is
//
//	header  of a vector of package sparse: the words' size, their number, and the
//	        positions of those that are not the common one
//	common  the word that is not sent
//	values  the other words, in sparse's form
package sparsewords

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

const (
	// Least is the size in bytes of the shortest frame that is encoded.
	Least = 256
	// samples is how many words are looked at to guess whether encoding pays.
	samples = 256
	// fewSamples is how many are looked at first. They settle the question for most dense
	// frames.
	fewSamples = 32
	// leastShare of the samples, in eighths, must be the common word.
	leastShare = 5
)

// ErrCorrupt is wrapped by all errors of decoding: the bytes are not what
// [Encoder.Append] wrote.
var ErrCorrupt = errors.New("sparsewords: corrupt values")

// kindOf returns a kind of number as large as a word. Package sparse stores bits; what they
// mean does not matter to it.
func kindOf(width int) element.Kind {
	switch width {
	case 2:
		return element.Float16
	case 8:
		return element.Float64
	}
	return element.Float32
}

// An Encoder holds buffers for encoding. Its zero value is ready to use. It is not safe for
// concurrent use.
type Encoder struct {
	vector sparse.Vector
	common []byte // a block of the common word
}

// Append appends the encoded form of a body of words of width bytes (2, 4 or 8) to dst if
// that is at most half as long. Otherwise it returns false, and dst as it was. It gives up
// as early as it can: after a few samples, or once the other words alone are too many.
func (e *Encoder) Append(dst, body []byte, width int) (_ []byte, ok bool) {
	n := len(body) / width
	if len(body)%width != 0 || len(body) < Least {
		return dst, false
	}
	common, ok := commonest(body, width)
	if !ok {
		return dst, false
	}
	v := &e.vector
	v.Resize(kindOf(width), n)
	if !e.collect(body, common, width, len(body)/2) {
		return dst, false
	}
	start := len(dst)
	dst = v.AppendHeader(dst)
	dst = appendWord(dst, common, width)
	// As they are: packed they would take a fifth less, and twice the time.
	dst = sparse.AppendValues(dst, v.Kind, v.Values, false)
	if len(dst)-start > len(body)/2 {
		return dst[:start], false
	}
	return dst, true
}

// Promises reports whether sampling a few words says that [Encoder.Append] will encode a
// body.
func Promises(body []byte, width int) bool {
	if len(body)%width != 0 || len(body) < Least {
		return false
	}
	_, ok := commonest(body, width)
	return ok
}

// commonest returns the word that most of the sampled ones are, and whether enough of them
// are.
func commonest(body []byte, width int) (common uint64, enough bool) {
	if common, enough = majority(body, width, fewSamples); enough && len(body)/width > fewSamples {
		common, enough = majority(body, width, samples)
	}
	return common, enough
}

// majority samples tried words, evenly spaced. The vote is that of Boyer and Moore (1981):
// a word that more than half of the samples are wins it, and a second pass counts it.
func majority(body []byte, width, tried int) (common uint64, enough bool) {
	n := len(body) / width
	tried = min(tried, n)
	at := func(s int) uint64 { return wordAt(body, int(uint64(s)*uint64(n)/uint64(tried)), width) }
	votes := 0
	for s := range tried {
		switch w := at(s); {
		case votes == 0:
			common, votes = w, 1
		case w == common:
			votes++
		default:
			votes--
		}
	}
	if votes == 0 {
		return common, false
	}
	count := 0
	for s := range tried {
		if at(s) == common {
			count++
		}
	}
	return common, 8*count >= leastShare*tried
}

// wordAt returns word i of a body as a number; appendWord is the reverse.
func wordAt(body []byte, i, width int) uint64 {
	switch b := body[i*width:]; width {
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 8:
		return binary.LittleEndian.Uint64(b)
	default:
		return uint64(binary.LittleEndian.Uint32(b))
	}
}

func appendWord(dst []byte, w uint64, width int) []byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], w)
	return append(dst, b[:width]...)
}

// block is how many bytes are compared at a time, so that the block and its copy of the
// common word stay in the first-level cache.
const block = 4 << 10

// collect sets the vector to the words of body that are not the common one. It gives up and
// returns false once they take more than most bytes.
func (e *Encoder) collect(body []byte, common uint64, width, most int) bool {
	v := &e.vector
	e.common = slices.Grow(e.common[:0], block)[:block]
	fill(e.common, appendWord(nil, common, width))
	for at := 0; at < len(body); at += block {
		part := body[at:min(at+block, len(body))]
		words := v.Mask[at/width/64 : at/width/64+sparse.Words(len(part)/width)]
		vector.Differ(v.Kind, part, e.common[:len(part)], words)
		e.gather(part, words, at/width)
		if len(v.Values) > most {
			return false
		}
	}
	return true
}

// gather appends the words that mask names, of a part whose first word is number first of
// the body.
func (e *Encoder) gather(part []byte, mask []uint64, first int) {
	v := &e.vector
	// Positions first, then the words at them: each loop does one thing, and the
	// second has no branches.
	before := len(v.At)
	for i, m := range mask {
		for ; m != 0; m &= m - 1 {
			v.At = append(v.At, uint32(first+i*64+bits.TrailingZeros64(m)))
		}
	}
	switch at := v.At[before:]; v.Kind.Size() {
	case 2:
		for _, p := range at {
			v.Values = binary.LittleEndian.AppendUint16(v.Values, binary.LittleEndian.Uint16(part[2*(int(p)-first):]))
		}
	case 4:
		for _, p := range at {
			v.Values = binary.LittleEndian.AppendUint32(v.Values, binary.LittleEndian.Uint32(part[4*(int(p)-first):]))
		}
	default:
		for _, p := range at {
			v.Values = binary.LittleEndian.AppendUint64(v.Values, binary.LittleEndian.Uint64(part[8*(int(p)-first):]))
		}
	}
}

// A Decoder reads one encoded body after the other: [Decoder.Open], then [Decoder.Fill].
// Its zero value is ready to use. It is not safe for concurrent use.
type Decoder struct {
	vector sparse.Vector
	common []byte // this and values are slices of Open's src
	values []byte
	count  int
}

// Open reads the beginning of an encoded body and returns the body's size in bytes. It
// refuses more than most. The mask takes one bit of memory for each word. src must stay as
// it is until Fill.
func (d *Decoder) Open(src []byte, most int) (size int, err error) {
	if len(src) == 0 || !element.Kind(src[0]).Valid() {
		return 0, fmt.Errorf("%w: no width of a word", ErrCorrupt)
	}
	width := element.Kind(src[0]).Size()
	count, src, err := d.vector.DecodeHeader(src, most/width)
	if err != nil {
		return 0, errors.Join(ErrCorrupt, err)
	}
	if len(src) < width {
		return 0, fmt.Errorf("%w: it ends before the common word", ErrCorrupt)
	}
	d.count, d.common, d.values = count, src[:width], src[width:]
	return d.vector.N * width, nil
}

// Fill writes the body to out, which has as many bytes as Open returned, and returns what
// follows the body in src.
func (d *Decoder) Fill(out []byte) (rest []byte, err error) {
	v := &d.vector
	if v.Values, rest, err = sparse.DecodeValues(v.Values[:0], v.Kind, d.count, d.values); err != nil {
		return nil, errors.Join(ErrCorrupt, err)
	}
	fill(out, d.common)
	v.Merge(out)
	return rest, nil
}

// fill repeats word all over out, doubling what is there with each copy. Zeros, the common
// case, are cleared.
func fill(out, word []byte) {
	for _, b := range word {
		if b != 0 {
			for n := copy(out, word); n < len(out); n *= 2 {
				copy(out[n:], out[:n])
			}
			return
		}
	}
	clear(out)
}
