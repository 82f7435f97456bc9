package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// A file is two headers and a log of records, in little endian:
//
//	header   magic, number u64, end u64, seal u32, CRC u32; number is odd in the second header
//	record   seal u32, size of the content u32, content: the entries of one Write
//	entry    size of the name, 1 + size of the value or 0 for a removal, as uvarints; name, value
//
// A record's seal is the CRC-32C of its size and content, begun with the seal of the record before
// it. So each record shows that it is whole and that it follows the one before it.
//
// The header with the higher number says where the log ends, and with which seal. A record is
// durable before a header covers it. What lies beyond the end was never acknowledged; what lies
// ahead of it must all be there, so a file that was cut is damaged and not merely older.
const (
	magic      = "psPLAN01"
	headerSize = 8 + 8 + 8 + 4 + 4
	headerStep = 4096 // each header has a page of its own
	logAt      = 2 * headerStep
	recordHead = 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errUnusable says that a file does not have what was written to it, or not in this format.
var errUnusable = errors.New("it cannot be used")

// header is the state of a file after a write.
type header struct {
	number, end uint64
	seal        uint32 // of the last record
}

func (h header) encode() []byte {
	b := binary.LittleEndian.AppendUint64([]byte(magic), h.number)
	b = binary.LittleEndian.AppendUint64(b, h.end)
	b = binary.LittleEndian.AppendUint32(b, h.seal)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// at is where a header is written: in turn, so that the one before it stays whole.
func (h header) at() int64 { return int64(h.number%2) * headerStep }

// next returns the header after one more record.
func (h header) next(record []byte) header {
	return header{h.number + 1, h.end + uint64(len(record)), binary.LittleEndian.Uint32(record)}
}

// appendRecord appends a record, to be written at the header's end.
func (h header) appendRecord(b []byte, entries []Entry) []byte {
	start := len(b)
	b = append(b, make([]byte, recordHead)...)
	for _, e := range entries {
		size := uint64(0)
		if e.Value != nil {
			size = uint64(len(e.Value)) + 1
		}
		b = binary.AppendUvarint(b, uint64(len(e.Name)))
		b = binary.AppendUvarint(b, size)
		b = append(b, e.Name...)
		b = append(b, e.Value...)
	}
	record := b[start:]
	binary.LittleEndian.PutUint32(record[4:], uint32(len(record)-recordHead))
	binary.LittleEndian.PutUint32(record, crc32.Update(h.seal, castagnoli, record[4:]))
	return b
}

// readHeaders returns the newer header. Both must be there, and one write apart: otherwise the last
// write of a header was lost, and the log would end too early.
func readHeaders(file *os.File) (header, error) {
	var both [2]header
	for i := range both {
		b := make([]byte, headerSize)
		if _, err := file.ReadAt(b, int64(i)*headerStep); err != nil && !errors.Is(err, io.EOF) {
			return header{}, err
		}
		h := header{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint32(b[24:])}
		if string(b) != string(h.encode()) || h.at() != int64(i)*headerStep {
			return header{}, fmt.Errorf("%w: its header at byte %d is not whole", errUnusable, i*headerStep)
		}
		both[i] = h
	}
	first, second := both[0], both[1]
	switch {
	case first.number == second.number+1:
		return first, nil
	case second.number == first.number+1:
		return second, nil
	}
	return header{}, fmt.Errorf("%w: its last two writes are %d and %d", errUnusable, first.number, second.number)
}

// readLog reads the log up to the header's end, and calls apply with the entries of each record.
func readLog(file io.ReaderAt, size int64, h header, apply func([]Entry)) error {
	if h.end < logAt || h.end > uint64(size) {
		return fmt.Errorf("%w: it has %d bytes, its log ends at byte %d", errUnusable, size, h.end)
	}
	log := bufio.NewReader(io.NewSectionReader(file, logAt, int64(h.end)-logAt))
	seal := uint32(0)
	for at := uint64(logAt); at < h.end; {
		var head [recordHead]byte
		if _, err := io.ReadFull(log, head[:]); err != nil {
			return readError(at, err)
		}
		length := binary.LittleEndian.Uint32(head[4:])
		if uint64(length) > h.end-at-recordHead {
			return fmt.Errorf("%w: the record at byte %d is said to have %d bytes", errUnusable, at, length)
		}
		content := make([]byte, length)
		if _, err := io.ReadFull(log, content); err != nil {
			return readError(at, err)
		}
		seal = crc32.Update(crc32.Update(seal, castagnoli, head[4:]), castagnoli, content)
		entries, ok := decodeEntries(content)
		if seal != binary.LittleEndian.Uint32(head[:]) || !ok {
			return fmt.Errorf("%w: the record at byte %d does not fit its checksum", errUnusable, at)
		}
		apply(entries)
		at += recordHead + uint64(length)
	}
	if seal != h.seal {
		return fmt.Errorf("%w: its last record is not the last that was written", errUnusable)
	}
	return nil
}

// readError returns the error of a read. A log whose bytes end within a record is damaged; another
// error is the disk's, and may be over the next time.
func readError(at uint64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the record at byte %d is cut", errUnusable, at)
	}
	return fmt.Errorf("reading the record at byte %d: %w", at, err)
}

// decodeEntries is the inverse of appendRecord for a record's content. The values share its memory.
func decodeEntries(b []byte) (entries []Entry, ok bool) {
	for len(b) > 0 {
		name, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, false
		}
		b = b[n:]
		value, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, false
		}
		b = b[n:]
		if name > MaxName || value > MaxValue+1 || name+max(value, 1)-1 > uint64(len(b)) {
			return nil, false
		}
		e := Entry{Name: string(b[:name])}
		b = b[name:]
		if value > 0 {
			e.Value, b = b[:value-1:value-1], b[value-1:]
		}
		entries = append(entries, e)
	}
	return entries, true
}
