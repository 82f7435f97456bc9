package sparse

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// form is the first byte of encoded positions. The sender chooses; the receiver takes any.
type form byte

const (
	formNone    form = iota // no position
	formAll                 // all
	formBitmap              // n bits
	formGaps                // uvarint count, gaps between positions
	formMissing             // uvarint count, gaps between the positions that are not in the mask
	formRuns                // uvarint count of runs; of each the gap before it and its length
)

// AppendPositions appends the positions of m, the mask of a vector of n numbers, in the
// form that takes the fewest bytes or nearly so. m is inverted for a while and must not be
// read meanwhile.
func AppendPositions(dst []byte, m Mask, n int) []byte {
	return appendPositions(dst, m, nil, m.Count(), n)
}

// appendPositions is [AppendPositions] for a mask of count positions. If at is not empty it
// lists them, which saves a walk over the mask where they are few.
func appendPositions(dst []byte, m Mask, at []uint32, count, n int) []byte {
	switch {
	case count == 0:
		return append(dst, byte(formNone))
	case count == n:
		return append(dst, byte(formAll))
	}
	// Runs pay if there are less than half as many as positions, each of which takes two
	// numbers then; gaps otherwise, of whichever positions are fewer, those in the mask or
	// those missing. Both give up at the length of a bitmap, which has no bad case.
	start, bitmap := len(dst), 1+(n+7)/8
	fewer := min(count, n-count)
	runs := 0
	if len(at) > 0 && len(at) < len(m) {
		runs = runsOf(at)
	} else {
		runs = m.runs()
	}
	switch {
	case runs*2 < fewer:
		dst = appendRuns(dst, m, runs, bitmap)
	case count <= n/2:
		dst = appendGaps(dst, formGaps, gaps{m: m, at: at}, count, bitmap)
	default:
		// The missing positions are fewer. Their mask is needed for a moment only, so m
		// serves as its own scratch memory.
		m.complement(n)
		dst = appendGaps(dst, formMissing, gaps{m: m}, n-count, bitmap)
		m.complement(n)
	}
	if len(dst)-start < bitmap {
		return dst
	}
	return appendBitmap(dst[:start], m, n)
}

// appendBitmap appends the form that has no bad case: one bit for each position.
func appendBitmap(dst []byte, m Mask, n int) []byte {
	dst = append(dst, byte(formBitmap))
	end := len(dst) + (n+7)/8
	// Whole words are written, and the bytes behind the last one of n bits are cut
	// off.
	for _, w := range m {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst[:end]
}

// runsOf is Mask.runs for a list of positions.
func runsOf(at []uint32) int {
	n, next := 0, ^uint32(0)
	for _, p := range at {
		if p != next {
			n++
		}
		next = p + 1
	}
	return n
}

// gaps yields the gaps between successive positions, of a list of them or else of a mask. A
// gap is the number of positions skipped, so that neighbours have 0.
type gaps struct {
	at   []uint32
	m    Mask
	word int // of m, the next one
	bits uint64
	next int // the position after the last one
}

// fill sets block to the next gaps. The caller knows that there are as many.
func (g *gaps) fill(block []uint64) {
	next := g.next
	if len(g.at) > 0 {
		for i, p := range g.at[:len(block)] {
			block[i] = uint64(int(p) - next)
			next = int(p) + 1
		}
		g.at, g.next = g.at[len(block):], next
		return
	}
	for i := range block {
		for ; g.bits == 0; g.word++ {
			g.bits = g.m[g.word]
		}
		p := (g.word-1)*64 + bits.TrailingZeros64(g.bits)
		g.bits &= g.bits - 1
		block[i] = uint64(p - next)
		next = p + 1
	}
	g.next = next
}

// appendGaps appends count positions in blocks. It stops early once it has used limit
// bytes: the caller then writes something shorter instead.
func appendGaps(dst []byte, f form, positions gaps, count, limit int) []byte {
	start := len(dst)
	dst = append(dst, byte(f))
	dst = binary.AppendUvarint(dst, uint64(count))
	var block [blockLen]uint64
	for ; count > 0 && len(dst)-start < limit; count -= blockLen {
		part := block[:min(count, blockLen)]
		positions.fill(part)
		dst = appendBlock(dst, part)
	}
	return dst
}

// appendRuns is appendGaps for runs: blocks of gaps and blocks of lengths alternate. A run
// has at least one position, and two runs never touch, so both are written less one.
func appendRuns(dst []byte, m Mask, runs, limit int) []byte {
	start := len(dst)
	dst = append(dst, byte(formRuns))
	dst = binary.AppendUvarint(dst, uint64(runs))
	var gaps, lengths [blockLen]uint64
	filled, next := 0, 0
	for done := 0; done < runs; done++ {
		first := m.nextPosition(next)
		end := m.nextClear(first)
		gaps[filled], lengths[filled] = uint64(first-next), uint64(end-first-1)
		if done > 0 {
			gaps[filled]-- // two runs do not touch
		}
		next = end
		if filled++; filled == blockLen || done == runs-1 {
			dst = appendBlock(dst, gaps[:filled])
			dst = appendBlock(dst, lengths[:filled])
			filled = 0
			if len(dst)-start >= limit {
				return dst
			}
		}
	}
	return dst
}

// nextPosition returns the first position in the mask from i on. The caller knows that
// there is one.
func (m Mask) nextPosition(i int) int {
	w := m[i/64] >> (i % 64) << (i % 64)
	for i /= 64; w == 0; w = m[i] {
		i++
	}
	return i*64 + bits.TrailingZeros64(w)
}

// nextClear returns the first position from i on that is not in the mask.
func (m Mask) nextClear(i int) int {
	w := ^m[i/64] >> (i % 64) << (i % 64)
	for i /= 64; w == 0; w = ^m[i] {
		if i++; i == len(m) {
			return i * 64
		}
	}
	return i*64 + bits.TrailingZeros64(w)
}

// DecodePositions reads what [AppendPositions] wrote for a vector of n numbers into m,
// which has Words(n) words, all zero. It returns how many positions there are and what
// follows them in src. After an error m may hold anything.
func DecodePositions(src []byte, m Mask, n int) (count int, rest []byte, err error) {
	if len(src) == 0 {
		return 0, nil, fmt.Errorf("%w: it ends before the positions", ErrCorrupt)
	}
	f, src := form(src[0]), src[1:]
	switch f {
	case formNone:
		return 0, src, nil
	case formAll:
		m.complement(n)
		return n, src, nil
	case formBitmap:
		return readBitmap(src, m, n)
	case formGaps, formMissing, formRuns:
	default:
		return 0, nil, fmt.Errorf("%w: positions of unknown form %d", ErrCorrupt, f)
	}
	// The count allocates nothing, so a corrupt one cannot exhaust memory: blocks are
	// read one by one, and each must be in the input.
	entries, used := binary.Uvarint(src)
	if used <= 0 || entries > uint64(n) {
		return 0, nil, fmt.Errorf("%w: %d positions or runs in a vector of %d", ErrCorrupt, entries, n)
	}
	if f == formRuns {
		return readRuns(src[used:], m, n, int(entries))
	}
	count = int(entries)
	if rest, err = readGaps(src[used:], m, n, count); err != nil {
		return 0, nil, err
	}
	if f == formMissing {
		m.complement(n)
		count = n - count
	}
	return count, rest, nil
}

// readBitmap reads a bitmap. Bits behind the last position would be positions that do
// not exist, and are refused rather than cleared: no encoder writes them.
func readBitmap(src []byte, m Mask, n int) (count int, rest []byte, err error) {
	size := (n + 7) / 8
	if size > len(src) {
		return 0, nil, fmt.Errorf("%w: it ends within a bitmap of %d bits", ErrCorrupt, n)
	}
	for i := range m {
		if i*8+8 <= size {
			m[i] = binary.LittleEndian.Uint64(src[i*8:])
			continue
		}
		var tail [8]byte
		copy(tail[:], src[i*8:size])
		m[i] = binary.LittleEndian.Uint64(tail[:])
	}
	if n%64 != 0 && m[len(m)-1]>>(n%64) != 0 {
		return 0, nil, fmt.Errorf("%w: a bitmap with positions beyond its end", ErrCorrupt)
	}
	return m.Count(), src[size:], nil
}

// readGaps sets the positions that count gaps lead to. m has room for n positions;
// the first one beyond is an error, whatever the input claims.
func readGaps(src []byte, m Mask, n, count int) (rest []byte, err error) {
	var block [blockLen]uint64
	at := uint64(0)
	for count > 0 {
		// The gap is compared by itself first: a sum of 64 bits could wrap around.
		gaps := block[:min(count, blockLen)]
		if src, err = readBlock(src, gaps); err != nil {
			return nil, err
		}
		for _, gap := range gaps {
			at += gap
			if gap >= uint64(n) || at >= uint64(n) {
				return nil, fmt.Errorf("%w: a position beyond the end of a vector of %d", ErrCorrupt, n)
			}
			m[at/64] |= 1 << (at % 64)
			at++
		}
		count -= len(gaps)
	}
	return src, nil
}

// readRuns sets the positions of runs runs. Gaps and lengths come in blocks in turns,
// so that each is coded with the parameter that suits it.
func readRuns(src []byte, m Mask, n, runs int) (count int, rest []byte, err error) {
	var gapBlock, lengthBlock [blockLen]uint64
	at := uint64(0)
	for done := 0; done < runs; {
		gaps, lengths := gapBlock[:min(runs-done, blockLen)], lengthBlock[:min(runs-done, blockLen)]
		if src, err = readBlock(src, gaps); err != nil {
			return 0, nil, err
		}
		if src, err = readBlock(src, lengths); err != nil {
			return 0, nil, err
		}
		for i, gap := range gaps {
			// appendRuns subtracts the one position between two runs.
			if done++; done > 1 {
				gap++
			}
			length := lengths[i] + 1
			if gap > uint64(n) || length > uint64(n) || at+gap+length > uint64(n) {
				return 0, nil, fmt.Errorf("%w: a run beyond the end of a vector of %d", ErrCorrupt, n)
			}
			at += gap
			// The sum above does not wrap around: each term is at most n, which is an
			// int.
			m.SetRun(int(at), int(length))
			at += length
			count += int(length)
		}
	}
	return count, src, nil
}
