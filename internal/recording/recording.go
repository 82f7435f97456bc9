// Package recording writes and reads the files of psidecar record: which keys each worker
// pulled and pushed in each step, at which server, and how many bytes that took. Strategies are
// evaluated on them afterwards.
//
// [Writer.Add] takes uses of keys; [Read] returns the same uses in the same order.
//
// # Format
//
// A file is the 8 bytes "psidrec" and version, then one zstd stream with a checksum. It
// consists of entries: a kind byte, the length of the body as uvarint, and the body. Kinds:
//
//	'H'  the header, JSON: see Header
//	'N'  a node: uvarint number, then its name "job<tab>node"
//	'K'  a list of keys: uvarint number of keys, then the difference of each to
//	     the one before as signed varint; lists are numbered from 0
//	'F'  all lists are forgotten, numbers start at 0 again
//	'S'  sampling: uvarint one in how many, then the job's name; how many requests
//	     a use of the job stands for from here on
//	'U'  a use, see appendUse
//	'E'  the end, JSON: see Totals; without it the file was cut off
//
// Training repeats its lists of keys, so a list is written once and referred to by its number
// as long as both sides remember it. The writer decides when lists are forgotten, by its own
// bounds.
package recording

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	magic   = "psidrec"
	version = 2 // 1 had no 'S': its header alone says how requests were sampled
	// maxLists bounds the lists that are remembered at a time, maxListKeys their keys in total,
	// and maxEntry the bytes of an entry.
	maxLists    = 1 << 14
	maxListKeys = 1 << 23
	maxEntry    = 64 << 20
)

// Header describes the origin of a recording.
type Header struct {
	Version      string `json:"version"` // of psidecar
	Host         string `json:"host"`
	StartedNanos int64  `json:"started_unix_nanos"`
	SampledOneIn uint32 `json:"sampled_one_in"` // at the start; 'S' entries say what applies later
}

// Totals are the size of a recording.
type Totals struct {
	Uses       uint64 `json:"uses"`
	Keys       uint64 `json:"keys"`    // of all uses
	Bytes      uint64 `json:"bytes"`   // of all values
	Lists      uint64 `json:"lists"`   // lists of keys that were written
	Dropped    uint64 `json:"dropped"` // uses that came faster than they could be written
	EndedNanos int64  `json:"ended_unix_nanos"`
}

// A Use is one worker's use of a list of keys at one server. A message with very many keys may
// make several uses.
type Use struct {
	Job            string
	Worker, Server string
	UnixNanos      int64
	App, Customer  int32
	Timestamp      int32 // the request's timestamp
	Push, Pull     bool
	Answer         bool // this is the answer to such a request, with a pull's values
	Keys           []uint64
	Bytes          uint64  // of the values
	Lens           []int32 // elements for each key; nil if all have the same number
	OneIn          uint32  // requests that it stands for; 0 means 1
}

// Flags of a use, in the order in which appendUse sets them.
const (
	flagPush = 1 << iota
	flagPull
	flagAnswer
	flagLens
)

// appendUse appends the body of a 'U' entry: uvarints of worker, server and list; a byte of
// flags; varints of the time since the previous use, app, customer and timestamp; uvarint of
// bytes; and, if the flag says so, the lens as varints.
func appendUse(b []byte, u *Use, worker, server, list uint64, since int64) []byte {
	flags := byte(0)
	for i, set := range []bool{u.Push, u.Pull, u.Answer, u.Lens != nil} {
		if set {
			flags |= 1 << i
		}
	}
	b = binary.AppendUvarint(b, worker)
	b = binary.AppendUvarint(b, server)
	b = binary.AppendUvarint(b, list)
	b = append(b, flags)
	for _, v := range []int64{since, int64(u.App), int64(u.Customer), int64(u.Timestamp)} {
		b = binary.AppendVarint(b, v)
	}
	b = binary.AppendUvarint(b, u.Bytes)
	for _, n := range u.Lens {
		b = binary.AppendVarint(b, int64(n))
	}
	return b
}

// ErrCutOff says that a recording has no end, because its writer was killed. What was read
// before is valid.
var ErrCutOff = errors.New("the recording was cut off")

// errEntry is the cursor's error, of an entry whose length is right and whose content is not.
var errEntry = errors.New("truncated entry")

// A cursor decodes the body of an entry. After an error it returns zeros; callers check err at
// the end.
type cursor struct {
	b   []byte
	err error
}

// uvarint reads an unsigned varint.
func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.err, c.b = errEntry, nil
		return 0
	}
	c.b = c.b[n:]
	return v
}

// varint reads a signed varint.
func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.err, c.b = errEntry, nil
		return 0
	}
	c.b = c.b[n:]
	return v
}

// byte reads a byte.
func (c *cursor) byte() byte {
	if len(c.b) == 0 {
		c.err = errEntry
		return 0
	}
	v := c.b[0]
	c.b = c.b[1:]
	return v
}

// wrap adds to an error which entry it is about, counted from 0.
func wrap(entry int, kind byte, err error) error {
	return fmt.Errorf("recording, entry %d (%q): %w", entry, kind, err)
}
