package shared

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// Frames of a lane: a byte, and numbers as uvarints. To the receiving end go
//
//	keep   count, numbers: of all before, only these are of use
//	put    number, form, bytes of the values; where packed, bytes on the lane; these
//	drop   number: it is of no use any more
//	want   bytes that the sender would keep
//
// and back come
//
//	start  number of the first that is lacking, bytes granted: the first frame
//	used   link, references used since its beginning
//	gone   link: it uses no more
//	limit  bytes granted
const (
	kindKeep  byte = 1
	kindPut   byte = 2
	kindDrop  byte = 3
	kindWant  byte = 4
	kindStart byte = 1
	kindUsed  byte = 2
	kindGone  byte = 3
	kindLimit byte = 4
)

// frame is one to the receiving end.
type frame struct {
	kind   byte
	number uint64 // of an entry, or bytes
	entry  *entry // of a put
	keep   []uint64
}

// appendHead appends a frame but for the values.
func (f *frame) appendHead(dst []byte) []byte {
	dst = append(dst, f.kind)
	switch f.kind {
	case kindKeep:
		dst = binary.AppendUvarint(dst, uint64(len(f.keep)))
		for _, n := range f.keep {
			dst = binary.AppendUvarint(dst, n)
		}
	case kindPut:
		dst = binary.AppendUvarint(dst, f.number)
		dst = append(dst, f.entry.form)
		dst = binary.AppendUvarint(dst, uint64(len(f.entry.values)))
		if f.entry.form != Plain {
			dst = binary.AppendUvarint(dst, uint64(len(f.entry.packed)))
		}
	default:
		dst = binary.AppendUvarint(dst, f.number)
	}
	return dst
}

// readNumber reads a number inside a frame.
func readNumber(r *bufio.Reader) (uint64, error) {
	n, err := binary.ReadUvarint(r)
	if errors.Is(err, io.EOF) {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// clip is a number of bytes that may be more than there are.
func clip(n uint64) int { return int(min(n, math.MaxInt32)) }
