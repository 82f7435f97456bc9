package pslite

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// decodeProto reads a PBMeta of dialect d and returns the bits of the fields that it
// holds. Absent fields get the values that PS-lite gives them, which for the head is 0
// and not Empty.
func (m *Meta) decodeProto(b []byte, d Dialect) (seen uint32, err error) {
	m.Reset()
	m.Head = 0
	w := fields{rest: b, canonical: true}
	// The usual message is a sequence of short fields. Everything else takes the
	// general way, and may come back to the short one.
	last := lastField(d)
	var f field
	for {
		if m.takeShort(&w, last) {
			continue
		}
		more, err := w.next(&f)
		if err != nil {
			return 0, fmt.Errorf("pslite: meta: at byte %d: %w", len(b)-len(w.rest), err)
		}
		if !more {
			break
		}
		// A field of a later generation, or of a fork. It is written back behind all
		// others.
		if f.number > last {
			m.unknown = w.keep(&f, m.unknown)
			continue
		}
		if err := m.takeField(&w, &f); err != nil {
			return 0, fmt.Errorf("pslite: meta: %w", err)
		}
	}
	switch d {
	// Field 7 was read as the app id: in this generation it is the customer's, which
	// serves as both.
	case DMLC2017:
		m.CustomerID = m.AppID
		fallthrough
	case DMLC2018:
		m.Pull = m.Data() && !m.Push
	}
	if !w.canonical {
		m.raw = b
	}
	// A program may leave out fields with default values, or write fields that PS-lite
	// would leave out. Appending reproduces that.
	m.flips = w.seen ^ m.written(d)
	return w.seen, nil
}

// takeField stores one field of PBMeta. A field of another wire type than it should
// have is unknown, as the protobuf library treats it.
func (m *Meta) takeField(w *fields, f *field) error {
	if want := metaTypes[f.number]; f.kind != want {
		if f.number == fieldDataType && f.kind == protowire.VarintType { // not packed
			w.canonical = false
			w.noteField(f, true)
			m.DataTypes = append(m.DataTypes, DataType(w.int32(f.varint)))
			return nil
		}
		m.unknown = w.keep(f, m.unknown)
		return nil
	}
	w.noteField(f, false)
	switch f.number {
	case fieldBody:
		m.Body = f.bytes
	case fieldControl:
		return m.Control.decode(w, f.bytes)
	case fieldDataType:
		return m.decodeDataTypes(w, f.bytes)
	default:
		m.setVarint(w, f.number, f.varint)
	}
	return nil
}

// takeShort is the fast path for what most fields are: a varint of one byte behind a
// tag of one byte, in order. It reports whether it took one. A data message of the
// usual form is read by it almost completely.
func (m *Meta) takeShort(w *fields, last protowire.Number) bool {
	b := w.rest
	if len(b) < 2 || b[0] >= 0x80 || b[1] >= 0x80 || b[0]&7 != byte(protowire.VarintType) {
		return false
	}
	number := protowire.Number(b[0] >> 3)
	// Out of order, or after an unknown field: the form is not canonical then, which
	// the general way notes.
	if number > last || number <= w.last || w.unknowns || metaTypes[number] != protowire.VarintType {
		return false
	}
	m.setVarint(w, number, uint64(b[1]))
	w.last = number
	w.seen |= 1 << number
	w.rest = b[2:]
	return true
}

// setVarint stores a field that is a number or a bool.
func (m *Meta) setVarint(w *fields, number protowire.Number, v uint64) {
	switch number {
	case fieldHead:
		m.Head = w.int32(v)
	case fieldRequest:
		m.Request = w.bool(v)
	case fieldPush:
		m.Push = w.bool(v)
	case fieldSimpleApp:
		m.SimpleApp = w.bool(v)
	case fieldAppID:
		m.AppID = w.int32(v)
	case fieldTimestamp:
		m.Timestamp = w.int32(v)
	case fieldCustomerID:
		m.CustomerID = w.int32(v)
	case fieldDataSize:
		m.DataSize = w.int32(v)
	case fieldPull:
		m.Pull = w.bool(v)
	case fieldPriority:
		m.Priority = w.int32(v)
	}
}

// metaTypes are the wire types of PBMeta's fields.
var metaTypes = [...]protowire.Type{
	fieldHead: protowire.VarintType, fieldBody: protowire.BytesType,
	fieldControl: protowire.BytesType, fieldRequest: protowire.VarintType,
	fieldPush: protowire.VarintType, fieldSimpleApp: protowire.VarintType,
	fieldAppID: protowire.VarintType, fieldTimestamp: protowire.VarintType,
	fieldDataType: protowire.BytesType, fieldCustomerID: protowire.VarintType,
	fieldDataSize: protowire.VarintType, fieldPull: protowire.VarintType,
	fieldPriority: protowire.VarintType,
}

// decodeDataTypes reads packed data types. An empty field is legal, but never written.
func (m *Meta) decodeDataTypes(w *fields, packed []byte) error {
	if len(packed) == 0 {
		w.canonical = false
	}
	for len(packed) > 0 {
		v, n := varint(packed)
		if n < 0 {
			return fmt.Errorf("data types: %w", protowire.ParseError(n))
		}
		if n != protowire.SizeVarint(v) {
			w.canonical = false
		}
		m.DataTypes = append(m.DataTypes, DataType(w.int32(v)))
		packed = packed[n:]
	}
	return nil
}

// decode reads a PBControl and has outer know if its form is not canonical. The command
// is required in the protobuf's schema.
func (c *Control) decode(outer *fields, b []byte) error {
	w := fields{rest: b, canonical: true}
	var f field
	for {
		more, err := w.next(&f)
		if err != nil {
			return fmt.Errorf("control: %w", err)
		}
		if !more {
			break
		}
		switch {
		case f.number == fieldCmd && f.kind == protowire.VarintType:
			w.noteField(&f, false)
			c.Cmd = Command(w.int32(f.varint))
		case f.number == fieldNode && f.kind == protowire.BytesType:
			w.noteField(&f, true)
			c.Nodes = append(c.Nodes, Node{})
			if err := c.Nodes[len(c.Nodes)-1].decode(&w, f.bytes); err != nil {
				return fmt.Errorf("control: node %d: %w", len(c.Nodes)-1, err)
			}
		case f.number == fieldBarrierGroup && f.kind == protowire.VarintType:
			w.noteField(&f, false)
			c.BarrierGroup = w.int32(f.varint)
		case f.number == fieldMsgSig && f.kind == protowire.VarintType:
			w.noteField(&f, false)
			c.MsgSig = f.varint
		default:
			c.unknown = w.keep(&f, c.unknown)
		}
	}
	if w.seen&(1<<fieldCmd) == 0 {
		return errors.New("control: the command is missing")
	}
	outer.canonical = outer.canonical && w.canonical
	c.flips = w.seen ^ c.written()
	return nil
}

// decode reads a PBNode. The role is required in the protobuf's schema.
func (n *Node) decode(outer *fields, b []byte) error {
	n.ID = Empty
	w := fields{rest: b, canonical: true}
	var f field
	for {
		more, err := w.next(&f)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if want, ok := nodeType(f.number); !ok || f.kind != want {
			n.unknown = w.keep(&f, n.unknown)
			continue
		}
		w.noteField(&f, false)
		switch f.number {
		case fieldRole:
			n.Role = Role(w.int32(f.varint))
		case fieldID:
			n.ID = w.int32(f.varint)
		case fieldHostname:
			n.Hostname = string(f.bytes)
		case fieldPort:
			n.Port = w.int32(f.varint)
		case fieldIsRecovery:
			n.IsRecovery = w.bool(f.varint)
		case fieldNodeCustomerID:
			n.CustomerID = w.int32(f.varint)
		}
	}
	if w.seen&(1<<fieldRole) == 0 {
		return errors.New("the role is missing")
	}
	outer.canonical = outer.canonical && w.canonical
	n.flips = w.seen ^ nodeFields
	return nil
}

func nodeType(number protowire.Number) (protowire.Type, bool) {
	switch number {
	case fieldHostname:
		return protowire.BytesType, true
	case fieldRole, fieldID, fieldPort, fieldIsRecovery, fieldNodeCustomerID:
		return protowire.VarintType, true
	}
	return 0, false
}
