package sparse

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// valueBlock is how many values share a coding of their exponents.
const valueBlock = 256

// layout says where in a number, rotated left by one so that the sign comes
// last, the exponent is: in the bits from rest on.
type layout struct {
	size     int  // bytes
	exponent uint // bits
	rest     uint // bits: fraction and sign
}

func layoutOf(k element.Kind) layout {
	switch k {
	case element.Float32:
		return layout{4, 8, 24}
	case element.Float64:
		return layout{8, 11, 53}
	case element.Float16:
		return layout{2, 5, 11}
	default:
		return layout{2, 8, 8}
	}
}

// coding is how a block's exponents are written: the difference to base, upward
// or downward, as a Rice code or in a fixed number of bits.
type coding struct {
	way   way
	param uint // low bits of the Rice code, or the fixed number of bits
	base  uint64
}

type way byte

const (
	fixed    way = iota // exponent - base in param bits
	riceUp              // exponent - base
	riceDown            // base - exponent
)

const mostParam = 15

// choose finds the coding that takes the fewest bits for the exponents of
// numbers, and how many these are. Rice codes with more than two low bits are
// never much better than fixed ones for exponents.
func (l layout) choose(numbers []uint64) (best coding, least int) {
	low, high := numbers[0], numbers[0]
	for _, v := range numbers {
		low, high = min(low, v), max(high, v)
	}
	low, high = low>>l.rest, high>>l.rest
	width := uint(bits.Len64(high - low))
	best, least = coding{fixed, width, low}, int(width)*len(numbers)
	if width <= 1 {
		return best, least
	}
	var up, down [3]uint64
	for _, v := range numbers {
		above, below := v>>l.rest-low, high-v>>l.rest
		for r := range up {
			up[r] += above >> r
			down[r] += below >> r
		}
	}
	for r := range up {
		each := uint64(len(numbers)) * uint64(1+r)
		if cost := int(each + up[r]); cost < least {
			best, least = coding{riceUp, uint(r), low}, cost
		}
		if cost := int(each + down[r]); cost < least {
			best, least = coding{riceDown, uint(r), high}, cost
		}
	}
	return best, least
}

// appendBlock appends up to valueBlock numbers: a byte with way and param, base,
// and of each number its exponent's code and the other bits. Their room is the
// caller's.
func (l layout) appendBlock(dst, values []byte, room *[valueBlock]uint64) []byte {
	numbers := l.load(room[:0], values)
	c, bits := l.choose(numbers)
	dst = append(dst, byte(c.way)<<4|byte(c.param), byte(c.base))
	if l.exponent > 8 {
		dst = append(dst, byte(c.base>>8))
	}
	w := newBitWriter(dst, bits+len(numbers)*int(l.rest))
	if c.way == fixed {
		w.fixed(numbers, c, l.rest)
	} else {
		w.variable(numbers, c, l.rest)
	}
	return w.flush()
}

// fixed appends of each number its exponent's code and rest other bits. Of short
// ones it puts four or two at a time, as each put waits for the one before.
func (w *bitWriter) fixed(numbers []uint64, c coding, rest uint) {
	base, mask, param, width := c.base<<rest, uint64(1)<<rest-1, c.param&63, c.param+rest
	code := func(v uint64) uint64 { return (v-base)>>(rest&63) | v&mask<<param }
	a, at, full := w.ahead, w.at, 0
	if width <= mostPut/4 {
		for ; len(numbers) >= 4; numbers = numbers[4:] {
			first, second := code(numbers[0])|code(numbers[1])<<(width&63), code(numbers[2])|code(numbers[3])<<(width&63)
			a, full = a.put(w.dst[at:], first|second<<(2*width&63), 4*width)
			at += full
		}
	}
	if width <= mostPut/2 {
		for ; len(numbers) >= 2; numbers = numbers[2:] {
			a, full = a.put(w.dst[at:], code(numbers[0])|code(numbers[1])<<(width&63), 2*width)
			at += full
		}
	}
	w.ahead, w.at = a, at
	for _, v := range numbers {
		w.put((v-base)>>rest, c.param)
		w.put(v&mask, rest)
	}
}

// variable is fixed for Rice codes.
func (w *bitWriter) variable(numbers []uint64, c coding, rest uint) {
	var down uint64 // with all bits set it is base - exponent that is coded
	if c.way == riceDown {
		down = ^down
	}
	r, mask, others := c.param, uint64(1)<<c.param-1, uint64(1)<<rest-1
	a, at, full := w.ahead, w.at, 0
	for _, v := range numbers {
		e := (v>>rest - c.base ^ down) - down
		v &= others
		if width := uint(e>>r) + 1 + r; width+rest <= mostPut {
			a, full = a.put(w.dst[at:], ((v<<r|e&mask)<<1|1)<<(e>>r), width+rest)
			at += full
			continue
		}
		w.ahead, w.at = a, at
		w.rice(e, r)
		w.put(v, rest)
		a, at = w.ahead, w.at
	}
	w.ahead, w.at = a, at
}

// load appends numbers, rotated left by one.
func (l layout) load(dst []uint64, values []byte) []uint64 {
	switch l.size {
	case 2:
		for ; len(values) >= 2; values = values[2:] {
			dst = append(dst, uint64(bits.RotateLeft16(binary.LittleEndian.Uint16(values), 1)))
		}
	case 4:
		for ; len(values) >= 4; values = values[4:] {
			dst = append(dst, uint64(bits.RotateLeft32(binary.LittleEndian.Uint32(values), 1)))
		}
	default:
		for ; len(values) >= 8; values = values[8:] {
			dst = append(dst, bits.RotateLeft64(binary.LittleEndian.Uint64(values), 1))
		}
	}
	return dst
}

// store appends a rotated number as bytes.
func (l layout) store(dst []byte, v uint64) []byte {
	switch l.size {
	case 2:
		return binary.LittleEndian.AppendUint16(dst, bits.RotateLeft16(uint16(v), -1))
	case 4:
		return binary.LittleEndian.AppendUint32(dst, bits.RotateLeft32(uint32(v), -1))
	default:
		return binary.LittleEndian.AppendUint64(dst, bits.RotateLeft64(v, -1))
	}
}

// readBlock appends count numbers that appendBlock wrote.
func (l layout) readBlock(dst []byte, count int, src []byte) (values, rest []byte, err error) {
	head := 2
	if l.exponent > 8 {
		head = 3
	}
	if len(src) < head {
		return nil, nil, fmt.Errorf("%w: it ends before a block of values", ErrCorrupt)
	}
	c := coding{way(src[0] >> 4), uint(src[0] & mostParam), uint64(src[1])}
	if l.exponent > 8 {
		c.base |= uint64(src[2]) << 8
	}
	if c.way > riceDown {
		return nil, nil, fmt.Errorf("%w: exponents of unknown form %d", ErrCorrupt, c.way)
	}
	r := bitReader{src: src[head:]}
	beyond := uint64(0)
	if c.way == fixed && c.param+l.rest <= 57 {
		for range count {
			v := r.get(c.param + l.rest)
			e := c.base + v&(1<<c.param-1)
			beyond |= e >> l.exponent
			dst = l.store(dst, e<<l.rest|v>>c.param)
		}
		count = 0
	}
	for range count {
		e := c.base
		switch c.way {
		case fixed:
			e += r.get(c.param)
		case riceUp:
			e += r.rice(c.param)
		default:
			e -= r.rice(c.param)
		}
		beyond |= e >> l.exponent
		dst = l.store(dst, e<<l.rest|r.get(l.rest))
	}
	if beyond != 0 || r.overrun() {
		return nil, nil, fmt.Errorf("%w: a block of values that is none", ErrCorrupt)
	}
	return dst, r.rest(), nil
}
