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
//	put    number, form, bytes of the values; where packed, bytes on the lane; these. By key
//	       they are the table, link and number of the request, form of the values that the
//	       other end lacks, with 16 if it has some, a bit for each key then, and the values
//	drop   number: it is of no use any more
//	want   bytes that the sender would keep
//	table  number of a table below 8, width; where that is not 0, bits of a set's index: a new
//	       table, or with width 0 none
//
// and back come
//
//	start  number of the first that is lacking, bytes granted: the first frame
//	used   link, references used since its beginning
//	gone   link: it uses no more
//	limit  bytes granted
//
// Counts of used references are totals, not differences: what the sender missed of one lane
// it learns with the first frames of the next.
const (
	kindKeep  byte = 1
	kindPut   byte = 2
	kindDrop  byte = 3
	kindWant  byte = 4
	kindTable byte = 5
	kindStart byte = 1
	kindUsed  byte = 2
	kindGone  byte = 3
	kindLimit byte = 4
)

// frame is one frame to the receiving end.
type frame struct {
	kind   byte
	number uint64   // of an entry, or table; for want, bytes
	entry  *entry   // of a put
	keep   []uint64 // of a keep: the numbers of use
	// Of a table.
	width, setBits int
}

// appendHead appends a frame except for the values of a put, which are written from where
// they are.
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
	case kindTable:
		dst = binary.AppendUvarint(dst, f.number)
		dst = binary.AppendUvarint(dst, uint64(f.width))
		if f.width > 0 {
			dst = binary.AppendUvarint(dst, uint64(f.setBits))
		}
	default:
		dst = binary.AppendUvarint(dst, f.number)
	}
	return dst
}

// readNumber reads a number inside a frame, where the lane must not end.
func readNumber(r *bufio.Reader) (uint64, error) {
	n, err := binary.ReadUvarint(r)
	if errors.Is(err, io.EOF) {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// clip turns a number of bytes into an int. One that is too large stays too large for any
// limit.
func clip(n uint64) int { return int(min(n, math.MaxInt32)) }
