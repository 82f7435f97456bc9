// Package keylist encodes the key lists of pushes and pulls without loss, so that a list
// which both ends of a link have seen costs a few bytes, and a new one little more than its
// information.
//
// An [Encoder] takes the body of a keys frame, n keys of 8 bytes, little endian, and
// appends its encoded form to the caller's buffer; the [Decoder] at the other end of the
// link returns the identical bytes. Both keep the same state (a table of recent lists, a
// dictionary of keys) and change it only by what the encoded form says, in the order in
// which it was written, so that the two cannot disagree: a pair serves one link in one
// direction, sees every message of it in order, and ends with it. The codecs of proxy links
// call them.
//
// An encoded list begins with a byte that names its form, with flags:
//
//	raw         count, keys                     anything, also what is no list of keys
//	reference   age of an entry in the table    the list was seen before
//	delta       count, first key, stride, gaps  ascending keys
//	positions   positions in the dictionary as in delta, then the other keys
//
// Counts and ages are varints as in encoding/binary; gaps are packed in blocks of 128 with
// a width each. The package also has a codec for lists of values, see wordlist.go.
package keylist

import (
	"encoding/binary"
	"errors"
)

// form is the first byte of an encoded list: its kind in the low bits, and in the others
// what both ends do to their state afterwards.
type form byte

const (
	formRaw       form = iota // uvarint length in bytes, the bytes
	formReference             // uvarint age
	formDelta                 // delta list
	formPositions             // delta list of positions, delta list of keys that are not in the dictionary

	kindMask form = 0x0f
	keepFlag form = 0x10 // put the list into the table
	// learnFlag: add those keys of the list that the dictionary lacks.
	learnFlag form = 0x20
	// resetFlag: empty the dictionary, after the list was read and before learning. Then
	// all keys of the list are learned.
	resetFlag form = 0x40
)

// valid reports whether an encoder writes this form.
func (f form) valid() bool {
	switch flags := f &^ kindMask; f & kindMask {
	case formReference:
		return flags == 0
	case formRaw:
		return flags&^keepFlag == 0
	case formDelta, formPositions:
		return flags&^(keepFlag|learnFlag|resetFlag) == 0
	}
	return false
}

// keySize is the size of a key on the wire, in bytes.
const keySize = 8

// Limits bound the memory of an [Encoder] or [Decoder]. Both ends of a link
// must use the same limits; they agree on them when the link is made.
type Limits struct {
	// TableBytes is the size of all lists in the table together.
	TableBytes int `json:"table_bytes"`
	// TableLists is how many lists the table holds.
	TableLists int `json:"table_lists"`
	// DictionaryKeys is how many keys the dictionary holds. A key takes 8 bytes, and as
	// many in the buffer for the next merge; bounds of memory count 32.
	DictionaryKeys int `json:"dictionary_keys"`
	// ListBytes is the size of the largest list that is decoded.
	ListBytes int `json:"list_bytes"`
}

// DefaultLimits suit a link between two hosts: about 48 MiB at each end at most.
var DefaultLimits = Limits{
	TableBytes:     16 << 20,
	TableLists:     1024,
	DictionaryKeys: 2 << 20,
	ListBytes:      96 << 20, // no larger frame is held, so that none is encoded
}

// ErrCorrupt is wrapped by all errors of a [Decoder]: its input was not written by an
// [Encoder] in the same state. The link cannot go on.
var ErrCorrupt = errors.New("keylist: corrupt list")

// keyAt returns key i of a list.
func keyAt(list []byte, i int) uint64 { return binary.LittleEndian.Uint64(list[i*keySize:]) }

// putKey writes key i of a list.
func putKey(list []byte, i int, key uint64) { binary.LittleEndian.PutUint64(list[i*keySize:], key) }

// count returns how many keys a list has.
func count(list []byte) int { return len(list) / keySize }
