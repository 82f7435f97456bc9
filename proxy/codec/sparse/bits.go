package sparse

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// bitWriter appends bits to dst, lowest first. Its owner calls flush at the end. It does
// not check bounds bit by bit: newBitWriter has made room for the most bits that will come.
type bitWriter struct {
	dst []byte // with room for all that will be written and 8 bytes more
	at  int
	ahead
}

// ahead holds the bits that do not fill a byte yet. Loops keep it, and the byte's position,
// in local variables, so that the compiler can hold them in registers.
type ahead struct {
	word   uint64 // in its low `filled` bits
	filled uint   // less than 8
}

// newBitWriter returns a writer that appends up to most bits to dst.
func newBitWriter(dst []byte, most int) bitWriter {
	room := most/8 + 16
	return bitWriter{dst: slices.Grow(dst, room)[:len(dst)+room], at: len(dst)}
}

// mostPut is how many bits can be put at a time: with up to 7 ahead they fit into 64.
const mostPut = 56

// put writes the low width bits of v, at most mostPut, behind those ahead; the other bits
// of v must be zero. It returns the bits that are ahead then and how many bytes became
// full. It stores 8 bytes whatever the width and has no branch: widths are as good as
// random, and a mispredicted branch costs more than the store.
func (a ahead) put(dst []byte, v uint64, width uint) (ahead, int) {
	// The shifts are masked so that the compiler omits its check for shifts of 64 and more.
	word, filled := a.word|v<<(a.filled&7), a.filled+width
	binary.LittleEndian.PutUint64(dst, word)
	return ahead{word >> (filled & 0x38), filled & 7}, int(filled >> 3)
}

func (w *bitWriter) put(v uint64, width uint) {
	var full int
	w.ahead, full = w.ahead.put(w.dst[w.at:], v, width)
	w.at += full
}

// rice appends the Rice code of v with r low bits, at most mostLow: v>>r zeros, a one, the
// low bits. Long runs of zeros are put 32 at a time, so any v has a code.
func (w *bitWriter) rice(v uint64, r uint) {
	zeros := uint(v >> r)
	for ; zeros >= 32; zeros -= 32 {
		w.put(0, 32)
	}
	w.put(1<<zeros, zeros+1)
	w.put(v&(1<<r-1), r)
}

// rices appends values, at most blockLen, with r low bits each. Each put depends on the one
// before, by the bits ahead, so four codes are joined first and put at once where they fit
// into mostPut bits; the rest, which are rare if r suits the block, are put one by one.
func (w *bitWriter) rices(values []uint64, r uint) {
	var codes, widths [blockLen / 4]uint64
	riceFours(codes[:], widths[:], values, r)
	a, at, full := w.ahead, w.at, 0
	for i, code := range codes[:len(values)/4] {
		if width := widths[i]; width <= mostPut {
			a, full = a.put(w.dst[at:], code, uint(width))
			at += full
			continue
		}
		// Too long to be put at once. The local copies go back to the writer while it puts
		// the four.
		w.ahead, w.at = a, at
		w.each(values[4*i:4*i+4], r)
		a, at = w.ahead, w.at
	}
	w.ahead, w.at = a, at
	w.each(values[len(values)&^3:], r)
}

// each appends values with r low bits one by one.
func (w *bitWriter) each(values []uint64, r uint) {
	for _, v := range values {
		w.rice(v, r)
	}
}

// flush pads to a whole byte and returns dst with everything that was written.
func (w *bitWriter) flush() []byte {
	return w.dst[:w.at+int(w.filled+7)/8]
}

// bitReader reads what a bitWriter wrote. Beyond the end it reads zeros, which keeps the
// loops free of bounds checks; its owner asks overrun once at the end.
type bitReader struct {
	src []byte
	at  uint // position in bits
}

// mostGet is how many bits one load is sure to have: 64 less the up to 7 before the
// position.
const mostGet = 57

// peek returns at least mostGet bits from the position on.
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

// get reads width bits, at most mostGet.
func (r *bitReader) get(width uint) uint64 {
	v := r.peek() & (1<<width - 1)
	r.at += width
	return v
}

// rice reads what bitWriter.rice wrote with the same low, at most 32. A corrupt input can
// hold any number of zeros; reading stops at the input's end.
func (r *bitReader) rice(low uint) uint64 {
	// The common case: zeros, the one and the low bits are all in one load.
	bitsAhead := r.peek()
	zeros := uint(bits.TrailingZeros64(bitsAhead))
	if zeros+1+low <= mostGet {
		r.at += zeros + 1 + low
		return uint64(zeros)<<low | bitsAhead>>(zeros+1)&(1<<low-1)
	}
	zeros = 0
	for {
		z := uint(bits.TrailingZeros64(r.peek()))
		if z < mostGet {
			zeros += z
			r.at += z + 1
			return uint64(zeros)<<low | r.get(low)
		}
		// Beyond the end all bits are zero, and the one would never come. The caller sees
		// the overrun.
		if r.overrun() {
			return 0
		}
		zeros += mostGet
		r.at += mostGet
	}
}

// rices reads values with the same low. One load holds several short codes, and all that
// are whole are taken from it: another load could begin only when the end of the code
// before is known, which makes loads the longest chain of the loop. A code longer than a
// load goes by rice.
func (r *bitReader) rices(values []uint64, low uint) {
	mask := uint64(1)<<low - 1
	// Invariant: ahead holds at least left bits that were not consumed.
	for len(values) > 0 {
		ahead, left, n := r.peek(), uint(mostGet), 0
		for n < len(values) {
			zeros := uint(bits.TrailingZeros64(ahead))
			width := zeros + 1 + low
			if width > left {
				break
			}
			values[n] = uint64(zeros)<<(low&63) | ahead>>((zeros+1)&63)&mask
			ahead >>= width & 63
			left -= width
			n++
		}
		r.at += mostGet - left
		if n == 0 {
			values[0] = r.rice(low)
			n = 1
		}
		values = values[n:]
	}
}

// overrun reports whether more was read than the input has.
func (r *bitReader) overrun() bool { return r.at > 8*uint(len(r.src)) }

// rest returns the bytes after the current one.
func (r *bitReader) rest() []byte { return r.src[(r.at+7)>>3:] }

// blockLen is how many numbers share the parameter of their Rice codes: enough that the
// byte for it weighs little, few enough that it follows changes of density along the
// vector.
const blockLen = 128

// mostLow bounds the low bits of a Rice code, so that 31 zeros, a one and these fit into 64
// bits.
const mostLow = 32

// riceLow returns the number of low bits that suits values with this sum. Gaps between
// positions that are chosen independently are geometrically distributed; for these the
// expected code is shortest with about log2(ln 2 x mean) low bits, which 15/16 and the cut
// to a power of two approximate without a logarithm. The division comes last where the sum
// leaves room for that.
func riceLow(sum uint64, count int) uint {
	mean := sum / uint64(count) * 15 / 16
	if sum < 1<<32 {
		mean = sum * 15 / (16 * uint64(count))
	}
	return min(uint(max(bits.Len64(mean), 1)-1), mostLow)
}

// appendBlock appends up to blockLen values: a byte with the number of low bits, then their
// Rice codes, padded to a whole byte. The sum gives a bound of the codes' length before
// they are written.
func appendBlock(dst []byte, values []uint64) []byte {
	sum := uint64(0)
	for _, v := range values {
		sum += v
	}
	low := riceLow(sum, len(values))
	w := newBitWriter(append(dst, byte(low)), int(sum>>low)+len(values)*int(1+low))
	w.rices(values, low)
	return w.flush()
}

// readBlock fills values with what appendBlock wrote and returns what follows it.
func readBlock(src []byte, values []uint64) ([]byte, error) {
	if len(src) == 0 || src[0] > mostLow {
		return nil, fmt.Errorf("%w: it ends before a block of positions, or the block is not one", ErrCorrupt)
	}
	low := uint(src[0])
	r := bitReader{src: src[1:]}
	r.rices(values, low)
	if r.overrun() {
		return nil, fmt.Errorf("%w: it ends within a block of positions", ErrCorrupt)
	}
	return r.rest(), nil
}
