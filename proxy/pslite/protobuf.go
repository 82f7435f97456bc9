package pslite

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of PBMeta (dmlc/ps-lite, src/meta.proto).
const (
	fieldHead       = 1
	fieldBody       = 2
	fieldControl    = 3
	fieldRequest    = 4
	fieldPush       = 5
	fieldSimpleApp  = 6
	fieldAppID      = 7
	fieldTimestamp  = 8
	fieldDataType   = 9
	fieldCustomerID = 10
	fieldDataSize   = 11
	fieldPull       = 12
	fieldPriority   = 13
)

// Field numbers of PBControl.
const (
	fieldCmd          = 1
	fieldNode         = 2
	fieldBarrierGroup = 3
	fieldMsgSig       = 4
)

// Field numbers of PBNode.
const (
	fieldRole           = 1
	fieldID             = 2
	fieldHostname       = 3
	fieldPort           = 4
	fieldIsRecovery     = 5
	fieldNodeCustomerID = 10
)

// lastField is the highest field of PBMeta that a dialect knows.
func lastField(d Dialect) protowire.Number {
	switch d {
	case DMLC2017:
		return fieldDataType
	case DMLC2018:
		return fieldDataSize
	}
	return fieldPriority
}

// field is one protobuf field as read: varint holds a varint, bytes the
// content of a length-delimited one, whole the field with its tag.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
	whole  []byte
}

// fields walks over a protobuf message. It notes whether the message is in
// the form that PS-lite's encoder writes, and which fields it holds.
type fields struct {
	rest      []byte
	last      protowire.Number
	seen      uint32 // bits of the field numbers below 32 that were taken
	canonical bool
	unknowns  bool
}

// next cuts off the next field; false at the end or on an error.
func (w *fields) next(f *field) (bool, error) {
	b := w.rest
	if len(b) == 0 {
		return false, nil
	}
	tag, n := varint(b)
	if n < 0 {
		return false, protowire.ParseError(n)
	}
	if n != protowire.SizeVarint(tag) {
		w.canonical = false
	}
	f.number, f.kind = protowire.DecodeTag(tag)
	if f.number < protowire.MinValidNumber || f.number > protowire.MaxValidNumber {
		return false, fmt.Errorf("field number %d", f.number)
	}
	var size int
	switch f.kind {
	case protowire.VarintType:
		f.varint, size = varint(b[n:])
		if size >= 0 && size != protowire.SizeVarint(f.varint) {
			w.canonical = false
		}
	case protowire.BytesType:
		f.bytes, size = protowire.ConsumeBytes(b[n:])
		if size >= 0 && size != protowire.SizeBytes(len(f.bytes)) {
			w.canonical = false
		}
	default:
		size = protowire.ConsumeFieldValue(f.number, f.kind, b[n:])
	}
	if size < 0 {
		return false, fmt.Errorf("field %d: %w", f.number, protowire.ParseError(size))
	}
	f.whole, w.rest = b[:n+size], b[n+size:]
	return true, nil
}

// varint is protowire.ConsumeVarint with a short way for one byte.
func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// noteField notes a field that is understood. Each comes once and in order in the
// canonical form, before all unknown ones; repeats of a repeated field are
// all right.
func (w *fields) noteField(f *field, repeated bool) {
	if f.number < w.last || f.number == w.last && !repeated || w.unknowns {
		w.canonical = false
	}
	w.last = f.number
	w.seen |= 1 << f.number
}

// keep appends an unknown field to those kept.
func (w *fields) keep(f *field, unknown []byte) []byte {
	w.unknowns = true
	return append(unknown, f.whole...)
}

func (w *fields) int32(varint uint64) int32 {
	v := int32(varint)
	if uint64(int64(v)) != varint {
		w.canonical = false
	}
	return v
}

func (w *fields) bool(varint uint64) bool {
	if varint > 1 {
		w.canonical = false
	}
	return varint != 0
}
