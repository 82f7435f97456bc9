package sparse

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// valueForm is the first byte of encoded values.
type valueForm byte

const (
	valuesRaw    valueForm = iota // as they are
	valuesPacked                  // blocks; see block
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

// AppendValues appends numbers of a kind. With pack their exponents, which as a
// rule are few different ones where the numbers are the largest of many, go by
// a code that suits each block; the other bits, and without pack all, go as
// they are. What is longer packed goes as it is.
func AppendValues(dst []byte, kind element.Kind, values []byte, pack bool) []byte {
	if pack && len(values) > 0 {
		start := len(dst)
		dst = append(dst, byte(valuesPacked))
		l := layoutOf(kind)
		for rest := values; len(rest) > 0; {
			part := rest[:min(len(rest), valueBlock*l.size)]
			dst = l.appendBlock(dst, part)
			rest = rest[len(part):]
		}
		if len(dst)-start <= 1+len(values) {
			return dst
		}
		dst = dst[:start]
	}
	dst = append(dst, byte(valuesRaw))
	return append(dst, values...)
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

// choose finds the coding that takes the fewest bits, and how many these are.
// Rice codes with more than two low bits are never much better than fixed ones
// for exponents.
func choose(exponents []uint64) (best coding, least int) {
	low, high, sum := exponents[0], exponents[0], uint64(0)
	for _, e := range exponents {
		low, high = min(low, e), max(high, e)
		sum += e
	}
	n := uint64(len(exponents))
	width := uint(bits.Len64(high - low))
	best, least = coding{fixed, width, low}, int(uint64(width)*n)
	if width <= 1 {
		return best, least
	}
	up, down := [3]uint64{sum - n*low}, [3]uint64{n*high - sum}
	for _, e := range exponents {
		above, below := e-low, high-e
		up[1] += above >> 1
		up[2] += above >> 2
		down[1] += below >> 1
		down[2] += below >> 2
	}
	for r := range up {
		each := n * uint64(1+r)
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
// and of each number its exponent's code and the other bits.
func (l layout) appendBlock(dst, values []byte) []byte {
	var buffer, exponentBuffer [valueBlock]uint64
	numbers := l.load(buffer[:0], values)
	exponents := exponentBuffer[:len(numbers)]
	for i, v := range numbers {
		exponents[i] = v >> l.rest
		numbers[i] = v & (1<<l.rest - 1)
	}
	c, bits := choose(exponents)
	dst = append(dst, byte(c.way)<<4|byte(c.param), byte(c.base))
	if l.exponent > 8 {
		dst = append(dst, byte(c.base>>8))
	}
	w := newBitWriter(dst, bits+len(numbers)*int(l.rest))
	if c.way == fixed {
		w.fixed(exponents, numbers, c, l.rest)
	} else {
		w.variable(exponents, numbers, c, l.rest)
	}
	return w.flush()
}

// fixed appends of each number its exponent's code and rest other bits.
func (w *bitWriter) fixed(exponents, numbers []uint64, c coding, rest uint) {
	if c.param+rest > mostPut {
		for i, e := range exponents {
			w.put(e-c.base, c.param)
			w.put(numbers[i], rest)
		}
		return
	}
	a, at, full := w.ahead, w.at, 0
	numbers = numbers[:len(exponents)]
	for i, e := range exponents {
		a, full = a.put(w.dst[at:], e-c.base|numbers[i]<<c.param, c.param+rest)
		at += full
	}
	w.ahead, w.at = a, at
}

// variable is fixed for Rice codes.
func (w *bitWriter) variable(exponents, numbers []uint64, c coding, rest uint) {
	var down uint64 // with all bits set it is base - exponent that is coded
	if c.way == riceDown {
		down = ^down
	}
	r, mask := c.param, uint64(1)<<c.param-1
	a, at, full := w.ahead, w.at, 0
	numbers = numbers[:len(exponents)]
	for i, e := range exponents {
		e = (e - c.base ^ down) - down
		if width := uint(e>>r) + 1 + r; width+rest <= mostPut {
			a, full = a.put(w.dst[at:], ((numbers[i]<<r|e&mask)<<1|1)<<(e>>r), width+rest)
			at += full
			continue
		}
		w.ahead, w.at = a, at
		w.rice(e, r)
		w.put(numbers[i], rest)
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

// DecodeValues appends to dst the count numbers of a kind that [AppendValues]
// wrote, and returns what follows them in src.
func DecodeValues(dst []byte, kind element.Kind, count int, src []byte) (values, rest []byte, err error) {
	if len(src) == 0 {
		return nil, nil, fmt.Errorf("%w: it ends before the values", ErrCorrupt)
	}
	l := layoutOf(kind)
	switch f := valueForm(src[0]); f {
	case valuesRaw:
		src = src[1:]
		if count > len(src)/l.size {
			return nil, nil, fmt.Errorf("%w: it ends within %d values", ErrCorrupt, count)
		}
		return append(dst, src[:count*l.size]...), src[count*l.size:], nil
	case valuesPacked:
		src = src[1:]
		if uint64(count)*uint64(l.rest) > 8*uint64(len(src)) {
			return nil, nil, fmt.Errorf("%w: it ends within %d values", ErrCorrupt, count)
		}
		dst = slices.Grow(dst, count*l.size)
		for ; count > 0; count -= min(count, valueBlock) {
			if dst, src, err = l.readBlock(dst, min(count, valueBlock), src); err != nil {
				return nil, nil, err
			}
		}
		return dst, src, nil
	default:
		return nil, nil, fmt.Errorf("%w: values of unknown form %d", ErrCorrupt, f)
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
