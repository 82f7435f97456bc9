package pslite

import (
	"bytes"
	"slices"
)

// Meta is a message's meta frame in a form common to all dialects. Sender and receiver
// are not in it: they follow from the connection.
//
// A Meta is reused from message to message. After a decode its byte slices alias the
// decoded frame, or memory that the next decode reuses; Clone makes a copy that lasts.
//
// unknown, flips and raw serve one purpose: a Meta that is decoded and appended again
// gives the same bytes, whatever program wrote them, unless a field was changed.
type Meta struct {
	Head       int32 // the application's own number of the request, echoed in the answer
	AppID      int32
	CustomerID int32 // equal to AppID in dialect DMLC2017, which has only that
	Timestamp  int32 // counts a customer's requests, echoed in the answer
	Request    bool  // false: the answer to the request of that timestamp
	Push       bool
	Pull       bool // dialects without the field: a data message that is no push
	SimpleApp  bool
	Priority   int32
	DataSize   int32 // bytes in the data frames, where the dialect says it
	DataTypes  []DataType
	Body       []byte // SimpleApp's text
	Control    Control
	BytePS     BytePS // zero in the other dialects

	unknown []byte // protobuf fields that no generation has, as read
	flips   uint32 // bits of the fields whose presence differs from what written says
	raw     []byte // the frame as read, if Append would write it differently
}

// Control is the part of a Meta that system messages use; Cmd is NoCommand in all
// others. Which of the other fields mean anything depends on the command.
type Control struct {
	Cmd          Command
	BarrierGroup int32  // of Barrier: a mask of the group constants
	MsgSig       uint64 // of Ack: see [Signature]
	Nodes        []Node // of AddNode, Barrier, Heartbeat

	unknown []byte
	flips   uint32
}

// Node is an entry of the job's node table.
type Node struct {
	Role       Role
	ID         int32
	Hostname   string
	Port       int32
	IsRecovery bool
	CustomerID int32
	BytePS     *BytePSNode // nil in the other dialects

	unknown []byte
	flips   uint32
}

// BytePS holds what only BytePS's meta has. Values are as they stand on the wire; in
// control messages some are whatever lay in the sender's memory.
type BytePS struct {
	Key        uint64
	Addr       uint64
	ValLen     int32
	Option     int32
	SID        int32
	SrcDevType int32
	SrcDevID   int32
	DstDevType int32
	DstDevID   int32
}

// BytePSNode holds what only BytePS's node record has.
type BytePSNode struct {
	NumPorts        int32
	Ports           [32]int32
	DevTypes        [32]int32
	DevIDs          [32]int32
	EndpointName    [64]byte
	EndpointNameLen uint64
	AuxID           int32
}

// Reset makes m an empty message as PS-lite's constructor does: head, app and timestamp
// are Empty. Memory is kept for reuse.
func (m *Meta) Reset() {
	*m = Meta{
		Head: Empty, AppID: Empty, Timestamp: Empty,
		DataTypes: m.DataTypes[:0],
		Control:   Control{Nodes: m.Control.Nodes[:0], unknown: m.Control.unknown[:0]},
		unknown:   m.unknown[:0],
	}
}

// Data reports whether m belongs to a data request or its answer: neither
// control nor SimpleApp.
func (m *Meta) Data() bool { return m.Control.Cmd == NoCommand && !m.SimpleApp }

// Clone returns a copy that shares no memory with m or the decoded frame.
func (m *Meta) Clone() Meta {
	// The struct's copy shares slices with m until each of them is cloned.
	c := *m
	c.DataTypes = slices.Clone(m.DataTypes)
	c.Body = bytes.Clone(m.Body)
	c.unknown = bytes.Clone(m.unknown)
	c.raw = bytes.Clone(m.raw)
	c.Control.unknown = bytes.Clone(m.Control.unknown)
	c.Control.Nodes = slices.Clone(m.Control.Nodes)
	for i := range c.Control.Nodes {
		n := &c.Control.Nodes[i]
		n.unknown = bytes.Clone(n.unknown)
		if n.BytePS != nil {
			extra := *n.BytePS
			n.BytePS = &extra
		}
	}
	return c
}

// equal reports whether m and o say the same, raw forms aside.
func (m *Meta) equal(o *Meta) bool {
	return m.Head == o.Head && m.AppID == o.AppID && m.CustomerID == o.CustomerID &&
		m.Timestamp == o.Timestamp && m.Request == o.Request && m.Push == o.Push &&
		m.Pull == o.Pull && m.SimpleApp == o.SimpleApp && m.Priority == o.Priority &&
		m.DataSize == o.DataSize && slices.Equal(m.DataTypes, o.DataTypes) &&
		bytes.Equal(m.Body, o.Body) && m.BytePS == o.BytePS &&
		m.flips == o.flips && bytes.Equal(m.unknown, o.unknown) &&
		m.Control.equal(&o.Control)
}

func (c *Control) equal(o *Control) bool {
	return c.Cmd == o.Cmd && c.BarrierGroup == o.BarrierGroup && c.MsgSig == o.MsgSig &&
		c.flips == o.flips && bytes.Equal(c.unknown, o.unknown) &&
		slices.EqualFunc(c.Nodes, o.Nodes, func(a, b Node) bool { return a.equal(&b) })
}

func (n *Node) equal(o *Node) bool {
	return n.Role == o.Role && n.ID == o.ID && n.Hostname == o.Hostname && n.Port == o.Port &&
		n.IsRecovery == o.IsRecovery && n.CustomerID == o.CustomerID &&
		n.flips == o.flips && bytes.Equal(n.unknown, o.unknown) &&
		(n.BytePS == nil) == (o.BytePS == nil) && (n.BytePS == nil || *n.BytePS == *o.BytePS)
}

// Decode reads a meta frame in dialect d into m. It refuses what PS-lite itself would
// refuse, and keeps what it does not know byte for byte.
func (m *Meta) Decode(b []byte, d Dialect) error {
	if d == BytePSRaw {
		return m.decodeBytePS(b)
	}
	_, err := m.decodeProto(b, d)
	return err
}

// Append appends m as a meta frame in dialect d to dst. A Meta that was decoded in d
// and not changed comes out as the very bytes it was read from.
func (m *Meta) Append(dst []byte, d Dialect) []byte {
	if m.raw != nil {
		// raw is used only if m still says what it was decoded from: callers change
		// fields without touching raw. Decoding again is rare, as PS-lite's own
		// programs write the canonical form.
		var read Meta
		if read.Decode(m.raw, d) == nil && read.equal(m) {
			return append(dst, m.raw...)
		}
	}
	if d == BytePSRaw {
		return m.appendBytePS(dst)
	}
	return m.appendProto(dst, d)
}
