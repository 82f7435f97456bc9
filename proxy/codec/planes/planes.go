// Package planes encodes floating-point numbers in fewer bytes without loss: the top byte of
// each, which has its sign and the upper bits of its exponent, goes apart from the others, by a
// Huffman code, since numbers of a gradient or a model have few different ones. The other bytes
// go as they are. It works on bytes alone, so NaNs, infinities, signs of zeros and denormals
// come back as they were, and it keeps no state from one body to the next.
//
// [Encoder.Append] takes the body of a values frame, [Decoder.Open] and [Decoder.Fill] restore it
// into memory of the caller's. Package compact calls them.
//
// An encoded body is its width (a byte: 2, 4 or 8), the number of numbers (uvarint), and blocks
// of 65,536 numbers, the last one of the rest. A block is a uvarint size of the packed top bytes,
// these, a table and four streams of Huffman codes in the format of Zstandard's literals (RFC
// 8878, 4.2), or, with size 0, the top bytes as they are; then the lower bytes of each number.
package planes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/klauspost/compress/huff0"
)

const (
	// Least is the size of the shortest body that is encoded, in bytes.
	Least = 1 << 10
	block = 64 << 10 // numbers
	// sampled top bytes decide whether a body is worth encoding.
	sampled = 256
	// leastSpared is the part of a body that encoding has to spare, as a divisor.
	leastSpared = 16
)

// ErrCorrupt is wrapped by all errors of decoding.
var ErrCorrupt = errors.New("planes: corrupt values")

// Valid reports whether a width of numbers is one that can be encoded.
func Valid(width int) bool { return width == 2 || width == 4 || width == 8 }

// An Encoder holds buffers. Its zero value is ready to use. It is not safe for concurrent use.
type Encoder struct {
	top     []byte
	scratch huff0.Scratch
}

// Append appends the encoded form of a body of numbers of a width to dst if that spares a
// sixteenth or more. Otherwise it returns false, and dst as it was.
func (e *Encoder) Append(dst, body []byte, width int) (_ []byte, ok bool) {
	if !Valid(width) || len(body)%width != 0 || len(body) < Least || !promises(body, width) {
		return dst, false
	}
	start := len(dst)
	dst = binary.AppendUvarint(append(dst, byte(width)), uint64(len(body)/width))
	for rest := body; len(rest) > 0; {
		part := rest[:min(len(rest), block*width)]
		rest = rest[len(part):]
		n := len(part) / width
		e.top = slices.Grow(e.top[:0], n)[:n]
		for i := range e.top {
			e.top[i] = part[i*width+width-1]
		}
		e.scratch.Reuse = huff0.ReusePolicyNone
		packed, _, err := huff0.Compress4X(e.top, &e.scratch)
		if err != nil { // it becomes no smaller, or all bytes are one
			dst = append(append(dst, 0), e.top...)
		} else {
			dst = append(binary.AppendUvarint(dst, uint64(len(packed))), packed...)
		}
		dst = appendLower(dst, part, width)
	}
	if len(dst)-start > len(body)-len(body)/leastSpared {
		return dst[:start], false
	}
	return dst, true
}

// promises reports whether few of some top bytes are different ones.
func promises(body []byte, width int) bool {
	n := len(body) / width
	tried := min(n, sampled)
	var seen [256]bool
	different := 0
	for s := range tried {
		if b := body[int(uint64(s)*uint64(n)/uint64(tried))*width+width-1]; !seen[b] {
			seen[b] = true
			different++
		}
	}
	return different <= tried/4
}

// appendLower appends all bytes of numbers but the top ones. Each is written with its top byte,
// which the next one overwrites.
func appendLower(dst, part []byte, width int) []byte {
	n, at := len(part)/width, len(dst)
	dst = slices.Grow(dst, n*(width-1)+1)
	out := dst[at : at+n*(width-1)+1]
	switch width {
	case 2:
		for i := range n {
			out[i] = part[2*i]
		}
	case 4:
		for i := range n {
			binary.LittleEndian.PutUint32(out[3*i:], binary.LittleEndian.Uint32(part[4*i:]))
		}
	default:
		for i := range n {
			binary.LittleEndian.PutUint64(out[7*i:], binary.LittleEndian.Uint64(part[8*i:]))
		}
	}
	return dst[:at+n*(width-1)]
}

// A Decoder reads one encoded body after the other: [Decoder.Open], then [Decoder.Fill]. Its zero
// value is ready to use. It is not safe for concurrent use.
type Decoder struct {
	top     []byte
	src     []byte // behind the beginning
	width   int
	scratch huff0.Scratch
}

// Open reads the beginning of an encoded body and returns the body's size in bytes. It refuses
// more than most, and more than src can have. src must stay as it is until Fill.
func (d *Decoder) Open(src []byte, most int) (size int, err error) {
	if len(src) == 0 || !Valid(int(src[0])) {
		return 0, fmt.Errorf("%w: no width of a number", ErrCorrupt)
	}
	d.width = int(src[0])
	n, used := binary.Uvarint(src[1:])
	if used <= 0 {
		return 0, fmt.Errorf("%w: they end within their number", ErrCorrupt)
	}
	d.src = src[1+used:]
	if n > uint64(most/d.width) || n > uint64(len(d.src)/(d.width-1)) {
		return 0, fmt.Errorf("%w: %d numbers of %d bytes in %d, at most %d bytes are allowed", ErrCorrupt, n, d.width, len(d.src), most)
	}
	return int(n) * d.width, nil
}

// Fill writes the body to out, which has as many bytes as Open returned, and returns what
// follows the body in src.
func (d *Decoder) Fill(out []byte) (rest []byte, err error) {
	w, src := d.width, d.src
	for len(out) > 0 {
		part := out[:min(len(out), block*w)]
		out = out[len(part):]
		n := len(part) / w
		size, used := binary.Uvarint(src)
		if used <= 0 {
			return nil, fmt.Errorf("%w: they end before a block", ErrCorrupt)
		}
		src = src[used:]
		top := src
		if size == 0 && n <= len(src) {
			top, src = src[:n], src[n:]
		} else if size == 0 || size > uint64(len(src)) {
			return nil, fmt.Errorf("%w: they end within the top bytes of %d numbers", ErrCorrupt, n)
		} else {
			table, codes, err := huff0.ReadTable(src[:size], &d.scratch)
			if err != nil {
				return nil, fmt.Errorf("%w: a table: %w", ErrCorrupt, err)
			}
			d.top = slices.Grow(d.top[:0], n)
			if top, err = table.Decoder().Decompress4X(d.top[:0:n], codes); err != nil || len(top) != n {
				return nil, fmt.Errorf("%w: %d top bytes where there are %d numbers: %w", ErrCorrupt, len(top), n, err)
			}
			src = src[size:]
		}
		if n*(w-1) > len(src) {
			return nil, fmt.Errorf("%w: they end within %d numbers", ErrCorrupt, n)
		}
		join(part, top, src[:n*(w-1)], w)
		src = src[n*(w-1):]
	}
	return src, nil
}

// join makes numbers of their top bytes and the others.
func join(out, top, lower []byte, width int) {
	n := len(top)
	fast := max(n-1, 0) // a read of the last one's bytes would go beyond lower
	switch width {
	case 2:
		fast = n
		for i, t := range top {
			out[2*i], out[2*i+1] = lower[i], t
		}
	case 4:
		for i, t := range top[:fast] {
			binary.LittleEndian.PutUint32(out[4*i:], binary.LittleEndian.Uint32(lower[3*i:])&(1<<24-1)|uint32(t)<<24)
		}
	default:
		for i, t := range top[:fast] {
			binary.LittleEndian.PutUint64(out[8*i:], binary.LittleEndian.Uint64(lower[7*i:])&(1<<56-1)|uint64(t)<<56)
		}
	}
	for i := fast; i < n; i++ {
		copy(out[i*width:], lower[i*(width-1):])
		out[i*width+width-1] = top[i]
	}
}
