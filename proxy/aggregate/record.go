package aggregate

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// record is the file of a sum of a job with PS_RESEND. It is written before the sum's first byte
// goes, so that the proxy that comes after a kill knows which repeated pushes are in it. The file
// begins with a magic number, the number of pushes in the header and a byte for each of them, in order, that
// says whether it is answered. A checksum of the rest follows, the header's length, the header in JSON, and
// the sum.
//
// It is not synced: after a crash of the host the workers are gone too.
type record struct {
	path string
	refs int // pushes of the header that are not answered; with the last one the file goes
}

// header says which pushes a sum has to do with.
type header struct {
	// Carrier is the push that went with the sum, and Carried are those that go with zeros.
	Carrier keptPush   `json:"carrier"`
	Carried []keptPush `json:"carried,omitempty"`
	// Given are pushes of other lists, some of whose values are in the sum.
	Given []keptGift `json:"given,omitempty"`
}

// keptPush identifies a push, and Sum is hashed of what its worker sent.
type keptPush struct {
	Worker    int32  `json:"worker"`
	App       int32  `json:"app"`
	Customer  int32  `json:"customer"`
	Timestamp int32  `json:"timestamp"`
	Sum       uint64 `json:"sum"`
}

// keptGift says for which of a push's keys its values have left, as alternating lengths of runs:
// of keys that it still has, and of keys that it has given.
type keptGift struct {
	Push keptPush `json:"push"`
	Runs []int    `json:"runs"`
}

const (
	recordMagic  = "psum\x01"
	recordExt    = ".sum"
	marksAt      = len(recordMagic) + 4
	maxMarks     = 1 << 20
	maxHeader    = 64 << 20
	recordPrefix = "the record of a sum"
)

// reference is a push's place in a record: 0 is the carrier's.
type reference struct {
	*record
	at int
}

var recordTable = crc32.MakeTable(crc32.Castagnoli)

var errRecord = errors.New("it is damaged")

// writeRecord writes a record. A file that was written in part is not read as one.
func writeRecord(path string, h *header, sum []byte) error {
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("%s: %w", recordPrefix, err)
	}
	marks := 1 + len(h.Carried) + len(h.Given)
	b := make([]byte, marksAt+marks, marksAt+marks+8+len(text))
	copy(b, recordMagic)
	binary.LittleEndian.PutUint32(b[len(recordMagic):], uint32(marks))
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(crc32.Checksum(text, recordTable), recordTable, sum))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", recordPrefix, err)
	}
	_, err = f.Write(b)
	if err == nil {
		_, err = f.Write(sum)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
		return fmt.Errorf("%s: %w", recordPrefix, err)
	}
	return nil
}

// readRecord reads a record; answered has a byte for each push, other than 0 where it is answered.
// The error wraps errRecord, or is that of reading.
func readRecord(path string) (h *header, sum, answered []byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if h, sum, answered, err = parseRecord(b); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return h, sum, answered, err
}

// parseRecord is readRecord for a file's content.
func parseRecord(b []byte) (h *header, sum, answered []byte, err error) {
	if len(b) < marksAt || !strings.HasPrefix(string(b[:marksAt]), recordMagic) {
		return nil, nil, nil, errRecord
	}
	marks := binary.LittleEndian.Uint32(b[len(recordMagic):])
	if b = b[marksAt:]; marks > maxMarks || len(b) < int(marks)+8 {
		return nil, nil, nil, errRecord
	}
	answered, b = b[:marks], b[marks:]
	crc, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if b = b[8:]; n > maxHeader || int(n) > len(b) || crc32.Checksum(b, recordTable) != crc {
		return nil, nil, nil, errRecord
	}
	h = new(header)
	if err := json.Unmarshal(b[:n], h); err != nil || 1+len(h.Carried)+len(h.Given) != int(marks) {
		return nil, nil, nil, errors.Join(errRecord, err)
	}
	return h, b[n:], answered, nil
}

// mark notes in the file that a push is answered.
func (r reference) mark() error {
	f, err := os.OpenFile(r.path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", recordPrefix, err)
	}
	_, err = f.WriteAt([]byte{1}, int64(marksAt+r.at))
	return errors.Join(err, f.Close())
}

// isOver reports whether the file says that the server has answered; the proxy before this one may
// have heard it. A file that is gone was answered, too.
func (r *record) isOver() bool {
	f, err := os.Open(r.path)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	var b [1]byte
	_, err = io.ReadFull(io.NewSectionReader(f, int64(marksAt), 1), b[:])
	return err == nil && b[0] != 0
}

// release notes that a push of the record is answered, or cannot be repeated any more.
func (r reference) release() error {
	if r.refs--; r.refs > 0 {
		return r.mark()
	}
	os.Remove(r.path)
	return nil
}

// runsOf returns which keys are given, as a keptGift has it.
func runsOf(given []bool) (runs []int) {
	last, n := false, 0
	for _, g := range given {
		if g != last {
			runs = append(runs, n)
			last, n = g, 0
		}
		n++
	}
	return append(runs, n)
}

// ofRuns is the inverse of runsOf; nil where runs are no such lengths.
func ofRuns(runs []int) (given []bool) {
	for i, n := range runs {
		if n < 0 || n > maxKeptKeys-len(given) {
			return nil
		}
		given = append(given, slices.Repeat([]bool{i%2 == 1}, n)...)
	}
	return given
}

// maxKeptKeys bounds the keys of a push in a record: a key has a value of a byte at least.
const maxKeptKeys = Most
