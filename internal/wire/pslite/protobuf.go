package pslite

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of PBMeta (dmlc/ps-lite, src/meta.proto). Fields were only ever added,
// except that 7 was customer_id in the first generation and is app_id since.
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

// lastField is the highest field of PBMeta that a dialect knows. Higher ones are kept
// as unknown.
func lastField(d Dialect) protowire.Number {
	switch d {
	case DMLC2017:
		return fieldDataType
	case DMLC2018:
		return fieldDataSize
	}
	return fieldPriority
}

// field is one protobuf field as read: varint holds a varint, bytes the content of a
// length-delimited field, whole the field with its tag. The slices are of the frame.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
	whole  []byte
}

// fields walks over a protobuf message. It notes whether the message has the form that
// PS-lite's encoder writes (canonical), and which fields it holds. Only a message that
// is not canonical needs to be kept as read.
type fields struct {
	rest      []byte
	last      protowire.Number // the last field taken, to see whether they ascend
	seen      uint32           // bits of the field numbers below 32 that were taken
	canonical bool
	unknowns  bool // an unknown field was kept: none that is known may follow in the canonical form
}

// next cuts off the next field; false at the end or on an error. It refuses what the
// protobuf library would refuse.
func (w *fields) next(f *field) (bool, error) {
	b := w.rest
	if len(b) == 0 {
		return false, nil
	}
	tag, n := varint(b)
	if n < 0 {
		return false, protowire.ParseError(n)
	}
	// A varint may be padded with zero groups, which no encoder writes.
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

// varint is protowire.ConsumeVarint with a fast path for one byte, which most are.
func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// noteField records a field that is understood. In the canonical form each comes once
// and in ascending order, before all unknown ones; a repeated field may repeat.
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

// int32 converts a varint. protobuf sign-extends negative numbers to 64 bits; any other
// form is not canonical.
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
