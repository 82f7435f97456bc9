package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/psidecar/psidecar/proxy/route"
)

// A file is a header of headerSize bytes, of which the first 64 are used, and records of
// recordSize bytes, numbered from 0. Numbers are little-endian.
//
//	header   magic "psidLG02", worker u32, records u32, last timestamp that may
//	         have been given u32, flags u32, CRC at 60
//	record   kind u8, flags u8, owners u16, CRC u32, content
//	free     kind 0
//	request  kind 1; server, app, customer, timestamp, own timestamp i32 each;
//	         owners u16 each, the first 24; places of answers that have come u32
//	owners   kind 3; server, app, customer, timestamp of a request, place of the
//	         first i32 each; 50 more of its owners u16 each
//	block    kind 2; server, app, number, oldest i32 each; bits
//
// The CRC-32C of a record covers everything but itself, and starts from the record's number:
// a record that was never written, or belongs elsewhere, does not fit.
//
// A kill may come between any two stores to memory. Kind to CRC are one word, which is stored
// last, atomically. Before the content changes the word becomes beingWritten or, where a
// block only gets another bit, beingChanged. What was being written counts as not having
// happened, since nobody has been told of it yet; a block has its bit then, or not.
const (
	magic      = "psidLG02"
	headerSize = 4096
	headerUsed = 64
	recordSize = 128

	kindFree    = 0
	kindRequest = 1
	kindBlock   = 2
	kindOwners  = 3

	flagResend     = 1
	flagIncomplete = 2
	flagSplit      = 4

	contentAt    = 8
	requestFixed = contentAt + 20
	requestIn    = requestFixed + 2*firstOwners
	ownersFixed  = contentAt + 20
	firstOwners  = 24 // of a request, in its own record
	moreOwners   = 50 // in each of those that follow
	blockFixed   = contentAt + 16
	none         = -1 // no record

	beingWritten uint64 = 0x5A3C_96E1_0000_0003
	beingChanged uint64 = 0xA7D2_4B1E_0000_0004
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a record as it is in the file.
type record [recordSize]byte

// ints stores the leading numbers of the content.
func (b *record) ints(values ...int32) {
	for i, v := range values {
		binary.LittleEndian.PutUint32(b[contentAt+4*i:], uint32(v))
	}
}

func (b *record) int(i int) int32 {
	return int32(binary.LittleEndian.Uint32(b[contentAt+4*i:]))
}

// checksum returns the CRC of a record with that number.
func (b *record) checksum(number int) uint32 {
	sum := crc32.Update(uint32(number)*2654435761+1, castagnoli, b[:4])
	return crc32.Update(sum, castagnoli, b[contentAt:])
}

func (b *record) seal(number int) { binary.LittleEndian.PutUint32(b[4:], b.checksum(number)) }

func (b *record) word() uint64 { return binary.LittleEndian.Uint64(b[:]) }

// kindOf returns the kind of a record that was read. What a kill has left unfinished is what
// it was before, as far as anybody was told.
func (b *record) kindOf(number int) (byte, error) {
	switch {
	case b.word() == beingWritten:
		return kindFree, nil
	case b.word() == beingChanged:
		return kindBlock, nil
	case binary.LittleEndian.Uint32(b[4:]) != b.checksum(number):
		return 0, errors.New("it does not fit its checksum")
	}
	return b[0], nil
}

// content is what a record can hold; nil stands for a free one.
type content interface{ encode(*record) }

func (r *request) encode(b *record) {
	b[0], b[1] = kindRequest, byte(r.Flags)
	binary.LittleEndian.PutUint16(b[2:], uint16(len(r.Owners)))
	b.ints(r.ID.Server, r.ID.App, r.ID.Customer, r.ID.Timestamp, r.Own)
	for i, o := range r.Owners[:min(len(r.Owners), firstOwners)] {
		binary.LittleEndian.PutUint16(b[requestFixed+2*i:], uint16(o))
	}
	binary.LittleEndian.PutUint32(b[requestIn:], r.In)
}

// decodeRequest is the inverse of request.encode, for a record whose checksum fits. Owners that are in records of their
// own are zero.
func decodeRequest(b *record) *request {
	r := &request{Kept: route.Kept{
		ID:    route.ID{Server: b.int(0), App: b.int(1), Customer: b.int(2), Timestamp: b.int(3)},
		Flags: route.Flags(b[1]), Own: b.int(4),
	}}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	for i := range min(n, firstOwners) {
		r.Owners = append(r.Owners, int32(binary.LittleEndian.Uint16(b[requestFixed+2*i:])))
	}
	if n > firstOwners {
		r.Owners = append(r.Owners, make([]int32, n-firstOwners)...)
	}
	r.In = binary.LittleEndian.Uint32(b[requestIn:]) & (1<<n - 1)
	return r
}

// owners are those of a request's owners from a place on that one record has.
type owners struct {
	of     route.ID
	from   int32
	owners []int32 // moreOwners at most
}

func (o *owners) encode(b *record) {
	b[0] = kindOwners
	b.ints(o.of.Server, o.of.App, o.of.Customer, o.of.Timestamp, o.from)
	for i, owner := range o.owners {
		binary.LittleEndian.PutUint16(b[ownersFixed+2*i:], uint16(owner))
	}
}

// takeOwners copies its owners from a record to where they belong among all of its request, and reports whether they do.
func (o *owners) takeOwners(b *record, all []int32) bool {
	if o.from < firstOwners || (o.from-firstOwners)%moreOwners != 0 || int(o.from) >= len(all) {
		return false
	}
	for i := range all[o.from:min(int(o.from)+moreOwners, len(all))] {
		all[int(o.from)+i] = int32(binary.LittleEndian.Uint16(b[ownersFixed+2*i:]))
	}
	return true
}

func (k *block) encode(b *record) {
	b[0] = kindBlock
	b.ints(k.place.server, k.place.app, k.number, k.oldest)
	for i, word := range k.bits {
		binary.LittleEndian.PutUint64(b[blockFixed+8*i:], word)
	}
}

func decodeBlock(b *record) *block {
	k := &block{place: place{b.int(0), b.int(1)}, number: b.int(2), oldest: b.int(3)}
	for i := range k.bits {
		k.bits[i] = binary.LittleEndian.Uint64(b[blockFixed+8*i:])
	}
	return k
}

// header is the content of a file's first bytes.
type header struct {
	worker      int32
	records     uint32
	last, flags uint32
}

func (h header) encode() (b [headerUsed]byte) {
	copy(b[:], magic)
	for i, v := range []uint32{uint32(h.worker), h.records, h.last, h.flags} {
		binary.LittleEndian.PutUint32(b[8+4*i:], v)
	}
	binary.LittleEndian.PutUint32(b[headerUsed-4:], crc32.Checksum(b[:headerUsed-4], castagnoli))
	return b
}

// decodeHeader is the inverse of header.encode.
func decodeHeader(b []byte) (h header, err error) {
	switch {
	case string(b[:8]) != magic:
		return h, fmt.Errorf("it begins with %q instead of %q: it was written by another psidecar version, or is not a ledger", b[:8], magic)
	case binary.LittleEndian.Uint32(b[headerUsed-4:]) != crc32.Checksum(b[:headerUsed-4], castagnoli):
		return h, errors.New("its header does not fit its checksum")
	}
	v := func(i int) uint32 { return binary.LittleEndian.Uint32(b[8+4*i:]) }
	return header{int32(v(0)), v(1), v(2), v(3)}, nil
}
