// This part encodes lists of values, words of 4 bytes, many of which are equal: pulled
// parameters that nobody has touched yet are 0, and the gradients of features that occur in
// one sample alone are that sample's. It is lossless and keeps nothing from one list to the
// next.
//
// [WordEncoder.Append] takes the body of a values frame and encodes it if a look at a few
// of the words says that it pays; [WordDecoder.Decode] restores the body. Package compact
// calls both.
//
// An encoded list is
//
//	form      1 byte of flags
//	words     uvarint, how many
//	common    if flagged: a word, and a bit for each word, set where it is this
//	          one, the first in the lowest bit of the first byte
//	palette   if flagged: uvarint number of different words, these words (by package
//	          planes if flagged), and for each word that is not the common one its
//	          index among them, in as many bits as the largest takes, the lowest first
//	          If firsts is flagged, a bit for each word that is not the common one comes
//	          before the indices, set where it is the palette's next one and has no index
//	others    else: the words that are not the common one

package keylist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/planes"
)

const (
	hasCommon byte = 1 << iota
	hasPalette
	hasFirsts
	hasPlanes
)

const wordSize = 4

const (
	// MostWords is the size in bytes of the longest list that is encoded.
	MostWords = 1 << 20
	// fewest is the number of words from which on a list is worth a look.
	fewest = 32
	// samples is how many words are looked at to guess whether encoding pays.
	samples = 256
	// longestPalette is how many different words an index can distinguish.
	longestPalette = 2048
	// slots is the size of the table in which words are looked up; at most half of it is
	// used.
	slots = 2 * longestPalette
)

// ErrCorruptWords is wrapped by all errors of [WordDecoder.Decode].
var ErrCorruptWords = errors.New("wordlist: corrupt list")

// A WordEncoder holds the tables for encoding. The zero value is ready to use. It is not
// safe for concurrent use.
type WordEncoder struct {
	// Plain leaves out the forms that older decoders do not know: firsts and planes.
	Plain bool

	table   [slots]uint16 // 1 + index of a word in the palette
	palette []uint32
	indices []uint16
	words   []byte // of the palette
	planes  planes.Encoder
}

// Append appends the encoded form of a values frame's body to dst if that is shorter by an
// eighth or more; otherwise it returns false, and dst as it was.
func (e *WordEncoder) Append(dst, body []byte) (_ []byte, ok bool) {
	n := len(body) / wordSize
	if len(body)%wordSize != 0 || n < fewest || len(body) > MostWords {
		return dst, false
	}
	common, isCommon, repeats := e.guess(body, n)
	if !isCommon && !repeats {
		return dst, false
	}
	start := len(dst)
	dst = append(dst, 0)
	dst = binary.AppendUvarint(dst, uint64(n))
	var form byte
	if isCommon {
		form |= hasCommon
		dst = appendCommon(dst, body, common)
	}
	if repeats && e.index(body, common, isCommon) {
		var more byte
		dst, more = e.appendPalette(dst)
		form |= hasPalette | more
	} else if dst = appendOthers(dst, body, common, isCommon); !isCommon {
		return dst[:start], false
	}
	dst[start] = form
	if len(dst)-start > len(body)-len(body)/8 {
		return dst[:start], false
	}
	return dst, true
}

// guess looks at some of the words and returns the commonest, whether it is common enough
// to be marked by a bit for each word, and whether the others repeat so often that a
// palette pays.
func (e *WordEncoder) guess(body []byte, n int) (common uint32, isCommon, repeats bool) {
	e.clear()
	tried := min(n, samples)
	var counts [samples]uint16
	most := 0
	for s := range tried {
		i, _ := e.find(word(body, s*n/tried))
		if counts[i]++; counts[i] > counts[most] {
			most = int(i)
		}
	}
	isCommon = int(counts[most]) > tried/10
	others, different := tried, len(e.palette)
	if isCommon {
		others, different = tried-int(counts[most]), different-1
	}
	return e.palette[most], isCommon, others > 8 && different < others*15/16
}

// find returns the index of a word in the palette, to which a new word is added; false if
// the palette is full.
func (e *WordEncoder) find(w uint32) (index uint16, ok bool) {
	for at := w * 0x9e3779b1 >> (32 - 12); ; at = (at + 1) % slots {
		switch i := e.table[at]; {
		case i == 0:
			if len(e.palette) == longestPalette {
				return 0, false
			}
			e.palette = append(e.palette, w)
			e.table[at] = uint16(len(e.palette))
			return uint16(len(e.palette) - 1), true
		case e.palette[i-1] == w:
			return i - 1, true
		}
	}
}

func (e *WordEncoder) clear() {
	clear(e.table[:])
	e.palette = e.palette[:0]
}

// index sets the palette to all words but the common one, and indices to theirs. It gives
// up once the palette would be full or too long to pay.
func (e *WordEncoder) index(body []byte, common uint32, isCommon bool) bool {
	e.clear()
	e.indices = e.indices[:0]
	for ; len(body) >= wordSize; body = body[wordSize:] {
		w := binary.LittleEndian.Uint32(body)
		if isCommon && w == common {
			continue
		}
		i, ok := e.find(w)
		if !ok {
			return false
		}
		e.indices = append(e.indices, i)
	}
	return len(e.palette)*wordSize+len(e.indices)*width(len(e.palette))/8 < len(e.indices)*wordSize
}

// width returns how many bits an index into words different words takes.
func width(words int) int { return bits.Len(uint(max(words, 1) - 1)) }

// appendPalette appends the palette and the indices, packed to the width that the
// largest takes, and returns the flags of both.
func (e *WordEncoder) appendPalette(dst []byte) (_ []byte, form byte) {
	dst = binary.AppendUvarint(dst, uint64(len(e.palette)))
	e.words = e.words[:0]
	for _, w := range e.palette {
		e.words = binary.LittleEndian.AppendUint32(e.words, w)
	}
	width := width(len(e.palette))
	if !e.Plain {
		var ok bool
		if dst, ok = e.planes.Append(dst, e.words, wordSize); ok {
			form = hasPlanes
		}
	}
	if form&hasPlanes == 0 {
		dst = append(dst, e.words...)
	}
	if !e.Plain && len(e.palette)*width > len(e.indices) {
		form |= hasFirsts
		dst = e.appendFirsts(dst)
	}
	var pending uint64
	filled := 0
	for _, i := range e.indices {
		pending |= uint64(i) << filled
		if filled += width; filled >= 32 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(pending))
			pending >>= 32
			filled -= 32
		}
	}
	for ; filled > 0; filled -= 8 {
		dst = append(dst, byte(pending))
		pending >>= 8
	}
	return dst, form
}

// appendFirsts appends the bits that say which words are the palette's next ones, and takes
// these from the indices: the palette has its words in the order in which they come.
func (e *WordEncoder) appendFirsts(dst []byte) []byte {
	at, next := len(dst), uint16(0)
	dst = append(dst, make([]byte, (len(e.indices)+7)/8)...)
	others := e.indices[:0]
	for n, i := range e.indices {
		if i == next {
			dst[at+n/8] |= 1 << (n % 8)
			next++
		} else {
			others = append(others, i)
		}
	}
	e.indices = others
	return dst
}

// appendCommon appends the common word and the bits that say where it is.
func appendCommon(dst, body []byte, common uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, common)
	for ; len(body) >= 8*wordSize; body = body[8*wordSize:] {
		eight := (*[8 * wordSize]byte)(body)
		var differ uint32
		for bit := range 8 {
			differ |= differs(binary.LittleEndian.Uint32(eight[bit*wordSize:]), common) << bit
		}
		dst = append(dst, ^byte(differ))
	}
	if len(body) > 0 {
		var set byte
		for bit := 0; len(body) > 0; bit++ {
			set |= byte(1-differs(binary.LittleEndian.Uint32(body), common)) << bit
			body = body[wordSize:]
		}
		dst = append(dst, set)
	}
	return dst
}

// differs is 1 if two words differ, else 0, without a branch: whether a word is the common
// one cannot be predicted.
func differs(a, b uint32) uint32 {
	d := a ^ b
	return (d | -d) >> 31
}

// appendOthers appends the words that are not the common one.
func appendOthers(dst, body []byte, common uint32, isCommon bool) []byte {
	if !isCommon {
		return append(dst, body...)
	}
	at := len(dst)
	dst = slices.Grow(dst, len(body))[:at+len(body)]
	for ; len(body) >= wordSize; body = body[wordSize:] {
		w := binary.LittleEndian.Uint32(body)
		binary.LittleEndian.PutUint32(dst[at:], w)
		at += int(wordSize * differs(w, common))
	}
	return dst[:at]
}

func word(body []byte, i int) uint32 { return binary.LittleEndian.Uint32(body[i*wordSize:]) }

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorruptWords}, args...)...)
}
