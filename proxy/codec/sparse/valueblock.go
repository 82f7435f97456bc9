package sparse

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// valueBlock is how many values share a coding of their exponents.
const valueBlock = 256

// layout says where the exponent is in a number that was rotated left by one bit, so that
// the sign comes last: in the bits from rest on. Below it are fraction and sign, which go
// as they are.
type layout struct {
	kind     element.Kind
	exponent uint // bits
	rest     uint // bits: fraction and sign
}

// layoutOf returns the layout of a kind: its exponent's bits, and all below.
func layoutOf(k element.Kind) layout {
	switch k {
	case element.Float32:
		return layout{k, 8, 24}
	case element.Float64:
		return layout{k, 11, 53}
	case element.Float16:
		return layout{k, 5, 11}
	default:
		return layout{k, 8, 8}
	}
}

// coding is how a block's exponents are written: as differences from base, upward or
// downward, by a Rice code or in a fixed number of bits. Numbers above a threshold
// have exponents that crowd at the lower end, since few are much larger; those of a
// whole vector crowd at the upper end. choose tries both.
type coding struct {
	way   way
	param uint // low bits of the Rice code, or the fixed number of bits
	base  uint64
}

// way is how the difference of an exponent is written; the upper half of a block's
// first byte.
type way byte

const (
	fixed    way = iota // exponent - base in param bits
	riceUp              // exponent - base
	riceDown            // base - exponent
)

// mostParam is the largest parameter that the wire form's half byte holds.
const mostParam = 15

// choose finds the coding that takes the fewest bits for the exponents of numbers, of which
// least and most are the extremes, and returns how many bits these take. It tries Rice
// codes with up to two low bits: with more they are never much better than a fixed width
// for exponents.
func (l layout) choose(numbers []uint64, least, most uint64) (best coding, fewest int) {
	low, high := least>>l.rest, most>>l.rest
	width := uint(bits.Len64(high - low))
	best, fewest = coding{fixed, width, low}, int(width)*len(numbers)
	if width <= 1 {
		return best, fewest
	}
	up, down := halvings(numbers, low, high, l.rest)
	for r := range up {
		// Every code has its one and its low bits; the zeros are the differences without
		// these bits, summed.
		each := uint64(len(numbers)) * uint64(1+r)
		if cost := int(each + up[r]); cost < fewest {
			best, fewest = coding{riceUp, uint(r), low}, cost
		}
		if cost := int(each + down[r]); cost < fewest {
			best, fewest = coding{riceDown, uint(r), high}, cost
		}
	}
	return best, fewest
}

// room holds the numbers of a block, rotated left by one.
type room struct{ numbers [valueBlock]uint64 }

// writeRoom is a room with space for the joined codes of two or four numbers each, and for
// their lengths in bits.
type writeRoom struct {
	room
	codes, widths [valueBlock / 2]uint64
}

// appendBlock appends up to valueBlock numbers: a byte with way and parameter, the
// base in one byte or two, then for each number its exponent's code and its other
// bits. Fractions and signs are close to random and are not coded, so at most the
// exponent's bits are saved: 8 of 32 for float32.
func (l layout) appendBlock(dst, values []byte, r *writeRoom) []byte {
	numbers := r.numbers[:len(values)/l.kind.Size()]
	least, most := rotate(l.kind, numbers, values)
	c, bits := l.choose(numbers, least, most)
	dst = append(dst, byte(c.way)<<4|byte(c.param), byte(c.base))
	if l.exponent > 8 {
		dst = append(dst, byte(c.base>>8))
	}
	w := newBitWriter(dst, bits+len(numbers)*int(l.rest))
	if c.way == fixed {
		w.fixed(numbers, r.codes[:], c, l.rest)
	} else {
		w.variable(numbers, r, c, l.rest)
	}
	return w.flush()
}

// fixed appends each number as its exponent's code and rest other bits. Short ones are
// joined by two or four before they are put, since each put depends on the one before.
func (w *bitWriter) fixed(numbers, fours []uint64, c coding, rest uint) {
	base, mask, width := c.base<<rest, uint64(1)<<rest-1, c.param+rest
	code := func(v uint64) uint64 { return (v-base)>>(rest&63) | v&mask<<(c.param&63) }
	a, at, full := w.ahead, w.at, 0
	switch {
	case width <= mostPut/4:
		fours = fours[:len(numbers)/4]
		fixedFours(fours, numbers, base, rest, c.param)
		for _, four := range fours {
			a, full = a.put(w.dst[at:], four, 4*width)
			at += full
		}
		numbers = numbers[4*len(fours):]
	case width <= mostPut/2:
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

// variable is fixed for Rice codes. Two are put at a time where they fit.
func (w *bitWriter) variable(numbers []uint64, room *writeRoom, c coding, rest uint) {
	var down uint64 // all ones: base - exponent is coded; (x ^ down) - down negates x then
	if c.way == riceDown {
		down = ^down
	}
	r, others := c.param&63, uint64(1)<<rest-1
	codes, widths := room.codes[:len(numbers)/2], room.widths[:len(numbers)/2]
	riceTwos(codes, widths, numbers, c.base, down, rest, r)
	each := func(numbers []uint64) {
		for _, v := range numbers {
			w.rice((v>>rest-c.base^down)-down, r)
			w.put(v&others, rest)
		}
	}
	a, at, full := w.ahead, w.at, 0
	for i, code := range codes {
		if width := widths[i]; width <= mostPut {
			a, full = a.put(w.dst[at:], code, uint(width))
			at += full
			continue
		}
		w.ahead, w.at = a, at
		each(numbers[2*i : 2*i+2])
		a, at = w.ahead, w.at
	}
	w.ahead, w.at = a, at
	each(numbers[len(numbers)&^1:])
}

// readBlock appends count numbers that appendBlock wrote; count is at most
// valueBlock. Reading beyond src gives zeros and is noticed at the end, which spares
// a check for each number.
func (l layout) readBlock(dst []byte, count int, src []byte, r *room) (values, rest []byte, err error) {
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
	bits, numbers := bitReader{src: src[head:]}, r.numbers[:count]
	var exponents uint64
	// A number of float64 takes up to 68 bits, more than one load has; these are read in
	// two parts.
	if c.way == fixed && c.param+l.rest <= mostGet {
		exponents = bits.fixed(numbers, c, l.rest)
	} else {
		exponents = bits.variable(numbers, c, l.rest)
	}
	// A base and a difference from a corrupt input can add up to more than an exponent
	// holds, which would leak into the bits above. All exponents are checked at once, by
	// what any of them has set.
	if exponents>>l.exponent != 0 || bits.overrun() {
		return nil, nil, fmt.Errorf("%w: a block of values that is none", ErrCorrupt)
	}
	return l.store(dst, numbers), bits.rest(), nil
}

// fixed reads what bitWriter.fixed wrote, mostGet bits a number at most, short
// ones four at a time. It returns all bits that are in any exponent.
func (r *bitReader) fixed(numbers []uint64, c coding, rest uint) (exponents uint64) {
	param, width := c.param&63, (c.param+rest)&63
	mask, upper := uint64(1)<<width-1, uint64(1)<<param-1
	number := func(v uint64) uint64 {
		e := c.base + v&upper
		exponents |= e
		return e<<(rest&63) | v&mask>>param
	}
	if width <= mostGet/4 {
		for ; len(numbers) >= 4; numbers = numbers[4:] {
			v := r.peek()
			r.at += 4 * width
			numbers[0], numbers[1] = number(v), number(v>>width)
			numbers[2], numbers[3] = number(v>>(2*width&63)), number(v>>(3*width&63))
		}
	}
	if width <= mostGet/2 {
		for ; len(numbers) >= 2; numbers = numbers[2:] {
			v := r.peek()
			r.at += 2 * width
			numbers[0], numbers[1] = number(v), number(v>>width)
		}
	}
	for i := range numbers {
		numbers[i] = number(r.get(width))
	}
	return exponents
}

// variable is fixed for Rice codes, and for numbers of more bits. Of short numbers one
// load holds several, see [bitReader.rices].
func (r *bitReader) variable(numbers []uint64, c coding, rest uint) (exponents uint64) {
	if c.way == fixed {
		for i := range numbers {
			e := c.base + r.get(c.param)
			exponents |= e
			numbers[i] = e<<rest | r.get(rest)
		}
		return exponents
	}
	var down uint64 // all ones: base - exponent is coded; (x ^ down) - down negates x then
	if c.way == riceDown {
		down = ^down
	}
	low, mask, others := c.param&63, uint64(1)<<c.param-1, uint64(1)<<rest-1
	for len(numbers) > 0 {
		// Codes are taken from one load as long as it is sure to have all of the next
		// one.
		ahead, left, n := r.peek(), uint(mostGet), 0
		for n < len(numbers) {
			zeros := uint(bits.TrailingZeros64(ahead))
			width := zeros + 1 + low + rest
			if width > left {
				break
			}
			v := ahead >> ((zeros + 1) & 63)
			e := c.base + ((uint64(zeros)<<low | v&mask) ^ down) - down
			exponents |= e
			numbers[n] = e<<(rest&63) | v>>low&others
			ahead >>= width & 63
			left -= width
			n++
		}
		r.at += mostGet - left
		if n == 0 {
			e := c.base + (r.rice(low) ^ down) - down
			exponents |= e
			numbers[0] = e<<(rest&63) | r.get(rest)
			n = 1
		}
		numbers = numbers[n:]
	}
	return exponents
}

// store appends rotated numbers as bytes.
func (l layout) store(dst []byte, numbers []uint64) []byte {
	size := l.kind.Size()
	dst = slices.Grow(dst, len(numbers)*size)
	to := dst[len(dst) : len(dst)+len(numbers)*size]
	switch size {
	case 2:
		for i, v := range numbers {
			binary.LittleEndian.PutUint16(to[2*i:], bits.RotateLeft16(uint16(v), -1))
		}
	case 4:
		for i, v := range numbers {
			binary.LittleEndian.PutUint32(to[4*i:], bits.RotateLeft32(uint32(v), -1))
		}
	default:
		for i, v := range numbers {
			binary.LittleEndian.PutUint64(to[8*i:], bits.RotateLeft64(v, -1))
		}
	}
	return dst[:len(dst)+len(to)]
}
