package keylist

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/planes"
)

// A WordDecoder holds buffers for decoding. The zero value is ready to use. It is not safe
// for concurrent use.
type WordDecoder struct {
	words  []byte
	others []byte
	room   []byte // of the palette
	planes planes.Decoder
}

// Decode reads one encoded list from the beginning of src. It returns the body of the
// values frame, valid until the next call (it may be a slice of src), and what follows the
// list. MostWords bounds what is allocated.
func (d *WordDecoder) Decode(src []byte) (body, rest []byte, err error) {
	if len(src) == 0 || src[0]&^(hasCommon|hasPalette|hasFirsts|hasPlanes) != 0 || src[0] == 0 || src[0] > hasPalette|hasCommon && src[0]&hasPalette == 0 {
		return nil, nil, corrupt("no form, or an unknown one")
	}
	form := src[0]
	n, src, err := wordlistUvarint(src[1:], MostWords/wordSize)
	if err != nil {
		return nil, nil, err
	}
	var common, set []byte
	// How many words are listed one by one: those that are not marked as the common
	// one.
	others := n
	if form&hasCommon != 0 {
		marks := (n + 7) / 8
		if len(src) < wordSize+marks {
			return nil, nil, corrupt("it ends before the marks of %d words", n)
		}
		common, set, src = src[:wordSize], src[wordSize:][:marks], src[wordSize+marks:]
		for _, b := range set {
			others -= bits.OnesCount8(b)
		}
		if others < 0 || n%8 != 0 && set[marks-1]>>(n%8) != 0 {
			return nil, nil, corrupt("marks beyond %d words", n)
		}
	}
	list := src
	if form&hasPalette != 0 {
		if list, rest, err = d.readPalette(src, others, form); err != nil {
			return nil, nil, err
		}
	} else {
		if len(src) < others*wordSize {
			return nil, nil, corrupt("%d words in %d bytes", others, len(src))
		}
		list, rest = src[:others*wordSize], src[others*wordSize:]
	}
	if common == nil {
		return list, rest, nil
	}
	d.words = slices.Grow(d.words[:0], n*wordSize)[:n*wordSize]
	spread(d.words, set, list, binary.LittleEndian.Uint32(common))
	return d.words, rest, nil
}

// spread writes the common word where its bit is set, and the next of the others elsewhere.
// It has no branches while others are left to read.
func spread(out, set, others []byte, common uint32) {
	i := 0
	for ; len(others) >= wordSize && i < len(out)/wordSize; i++ {
		other := uint32(set[i/8]>>(i%8))&1 - 1 // all ones, or none
		w := binary.LittleEndian.Uint32(others)
		binary.LittleEndian.PutUint32(out[i*wordSize:], common^(w^common)&other)
		others = others[wordSize&other:]
	}
	for ; i < len(out)/wordSize; i++ {
		binary.LittleEndian.PutUint32(out[i*wordSize:], common)
	}
}

// readPalette reads a palette and the indices of n words, and returns the words.
func (d *WordDecoder) readPalette(src []byte, n int, form byte) (list, rest []byte, err error) {
	size, src, err := wordlistUvarint(src, longestPalette)
	if err != nil {
		return nil, nil, err
	}
	palette, src, err := d.readWords(src, size, form)
	if err != nil {
		return nil, nil, err
	}
	indices, next := n, 0
	var firsts []byte
	if form&hasFirsts != 0 {
		marks := (n + 7) / 8
		if len(src) < marks {
			return nil, nil, corrupt("it ends before the marks of %d words", n)
		}
		firsts, src = src[:marks], src[marks:]
		first := 0
		for _, b := range firsts {
			first += bits.OnesCount8(b)
		}
		if first != size || n%8 != 0 && firsts[marks-1]>>(n%8) != 0 {
			return nil, nil, corrupt("marks of %d words, of %d", first, size)
		}
		indices -= first
	}
	width := width(size)
	packed := (indices*width + 7) / 8
	if size == 0 && n > 0 || len(src) < packed {
		return nil, nil, corrupt("%d indices into %d words in %d bytes", indices, size, len(src))
	}
	src, rest = src[:packed], src[packed:]
	d.others = d.others[:0]
	var pending uint64
	filled := 0
	for at := range n {
		if firsts != nil && firsts[at/8]>>(at%8)&1 != 0 {
			d.others = append(d.others, palette[next*wordSize:][:wordSize]...)
			next++
			continue
		}
		for filled < width {
			pending |= uint64(src[0]) << filled
			src = src[1:]
			filled += 8
		}
		i := int(pending & (1<<width - 1))
		pending >>= width
		filled -= width
		if i >= size || firsts != nil && i >= next {
			return nil, nil, corrupt("index %d into %d words", i, size)
		}
		d.others = append(d.others, palette[i*wordSize:][:wordSize]...)
	}
	return d.others, rest, nil
}

// readWords reads the words of a palette.
func (d *WordDecoder) readWords(src []byte, size int, form byte) (palette, rest []byte, err error) {
	if form&hasPlanes == 0 {
		if len(src) < size*wordSize {
			return nil, nil, corrupt("%d words in %d bytes", size, len(src))
		}
		return src[:size*wordSize], src[size*wordSize:], nil
	}
	n, err := d.planes.Open(src, size*wordSize)
	if err != nil || n != size*wordSize {
		return nil, nil, corrupt("a palette of %d bytes for %d words: %v", n, size, err)
	}
	d.room = slices.Grow(d.room[:0], n)[:n]
	if rest, err = d.planes.Fill(d.room); err != nil {
		return nil, nil, corrupt("a palette: %v", err)
	}
	return d.room, rest, nil
}

func wordlistUvarint(src []byte, most int) (int, []byte, error) {
	v, n := binary.Uvarint(src)
	if n <= 0 || v > uint64(most) {
		return 0, nil, corrupt("a number that is cut off, or above %d", most)
	}
	return int(v), src[n:], nil
}
