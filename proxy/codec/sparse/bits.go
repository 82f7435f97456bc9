package sparse

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// bitWriter appends bits to dst, lowest first. Its owner calls flush at the end.
type bitWriter struct {
	dst    []byte
	word   uint64 // bits not yet appended, in its low `filled` bits
	filled uint   // less than 64
}

// put appends the low width bits of v, whose other bits are zero.
func (w *bitWriter) put(v uint64, width uint) {
	w.word |= v << w.filled
	w.filled += width
	if w.filled >= 64 {
		w.dst = binary.LittleEndian.AppendUint64(w.dst, w.word)
		w.filled -= 64
		w.word = v >> (width - w.filled) // a shift by 64 gives 0
	}
}

// rice appends v with r low bits: v>>r zeros, a one, the low bits.
func (w *bitWriter) rice(v uint64, r uint) {
	zeros := v >> r
	for ; zeros >= 32; zeros -= 32 {
		w.put(0, 32)
	}
	code := 1<<zeros | (v&(1<<r-1))<<(zeros+1)
	w.put(code, uint(zeros)+1+r)
}

// flush pads to a whole byte and returns everything.
func (w *bitWriter) flush() []byte {
	for ; w.filled > 0; w.filled -= min(w.filled, 8) {
		w.dst = append(w.dst, byte(w.word))
		w.word >>= 8
	}
	return w.dst
}

// bitReader reads what a bitWriter wrote. Beyond the end it reads zeros; its
// owner asks overrun.
type bitReader struct {
	src []byte
	at  uint // position in bits
}

// peek returns at least 57 bits from the position on.
func (r *bitReader) peek() uint64 {
	from := r.at >> 3
	if from+8 <= uint(len(r.src)) {
		return binary.LittleEndian.Uint64(r.src[from:]) >> (r.at & 7)
	}
	var tail [8]byte
	if from < uint(len(r.src)) {
		copy(tail[:], r.src[from:])
	}
	return binary.LittleEndian.Uint64(tail[:]) >> (r.at & 7)
}

// get reads width bits, at most 57.
func (r *bitReader) get(width uint) uint64 {
	v := r.peek() & (1<<width - 1)
	r.at += width
	return v
}

// rice reads what bitWriter.rice wrote with the same low, at most 32.
func (r *bitReader) rice(low uint) uint64 {
	bitsAhead := r.peek()
	zeros := uint(bits.TrailingZeros64(bitsAhead))
	if zeros+1+low <= 57 {
		r.at += zeros + 1 + low
		return uint64(zeros)<<low | bitsAhead>>(zeros+1)&(1<<low-1)
	}
	zeros = 0
	for {
		z := uint(bits.TrailingZeros64(r.peek()))
		if z < 57 {
			zeros += z
			r.at += z + 1
			return uint64(zeros)<<low | r.get(low)
		}
		if r.overrun() {
			return 0
		}
		zeros += 57
		r.at += 57
	}
}

// overrun reports whether more was read than there is.
func (r *bitReader) overrun() bool { return r.at > 8*uint(len(r.src)) }

// rest returns the bytes after the current one.
func (r *bitReader) rest() []byte { return r.src[(r.at+7)>>3:] }

// blockLen is how many numbers are coded with parameters of their own.
const blockLen = 128

// mostLow bounds the low bits of a Rice code, so that a code of 31 zeros, a one and
// these fits into 64 bits.
const mostLow = 32

// riceLow is the number of low bits that suits values with this sum: for
// geometrically distributed values, what makes the expected code shortest.
func riceLow(sum uint64, count int) uint {
	mean := sum / uint64(count) * 15 / 16
	if sum < 1<<32 {
		mean = sum * 15 / (16 * uint64(count))
	}
	return min(uint(max(bits.Len64(mean), 1)-1), mostLow)
}

// appendBlock appends up to blockLen values as a byte with the number of low
// bits and their Rice codes.
func appendBlock(dst []byte, values []uint64) []byte {
	sum := uint64(0)
	for _, v := range values {
		sum += v
	}
	low := riceLow(sum, len(values))
	w := bitWriter{dst: append(dst, byte(low))}
	for _, v := range values {
		w.rice(v, low)
	}
	return w.flush()
}

// readBlock reads len(values) values that appendBlock wrote, and returns what
// follows.
func readBlock(src []byte, values []uint64) ([]byte, error) {
	if len(src) == 0 || src[0] > mostLow {
		return nil, fmt.Errorf("%w: it ends before a block of positions, or the block is not one", ErrCorrupt)
	}
	low := uint(src[0])
	r := bitReader{src: src[1:]}
	for i := range values {
		values[i] = r.rice(low)
	}
	if r.overrun() {
		return nil, fmt.Errorf("%w: it ends within a block of positions", ErrCorrupt)
	}
	return r.rest(), nil
}
