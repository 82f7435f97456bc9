package pslite

import "google.golang.org/protobuf/encoding/protowire"

// written returns the fields that PS-lite's encoder of dialect d writes for m: some
// always, some if they differ from their default. flips is the difference of this from
// what was read.
func (m *Meta) written(d Dialect) uint32 {
	set := uint32(1<<fieldHead | 1<<fieldRequest | 1<<fieldPush | 1<<fieldSimpleApp)
	if len(m.Body) > 0 {
		set |= 1 << fieldBody
	}
	if m.Control.Cmd != NoCommand {
		set |= 1 << fieldControl
	}
	if m.AppID != Empty {
		set |= 1 << fieldAppID
	}
	if m.Timestamp != Empty {
		set |= 1 << fieldTimestamp
	}
	if len(m.DataTypes) > 0 {
		set |= 1 << fieldDataType
	}
	if d == DMLC2017 {
		return set
	}
	set |= 1<<fieldCustomerID | 1<<fieldDataSize
	if d == DMLC2018 {
		return set
	}
	return set | 1<<fieldPull | 1<<fieldPriority
}

// written returns the fields that PS-lite's encoder writes for c: which ones depends
// on the command.
func (c *Control) written() uint32 {
	set := uint32(1 << fieldCmd)
	if len(c.Nodes) > 0 {
		set |= 1 << fieldNode
	}
	switch c.Cmd {
	case Barrier, InstanceBarrier:
		set |= 1 << fieldBarrierGroup
	case Ack:
		set |= 1 << fieldMsgSig
	}
	return set
}

// nodeFields are the fields of PBNode that are always written.
const nodeFields uint32 = 1<<fieldRole | 1<<fieldID | 1<<fieldHostname | 1<<fieldPort |
	1<<fieldIsRecovery | 1<<fieldNodeCustomerID

// A wire appends the fields of one message in ascending order. A field is written if
// set has its bit, or if its value is not the one that its absence stands for: a field
// that was changed after decoding must not be lost.
type wire struct {
	b   []byte
	set uint32
}

func (p *wire) has(number int) bool { return p.set&(1<<number) != 0 }

func (p *wire) uint64(number int, v, absent uint64) {
	if v != absent || p.has(number) {
		p.b = protowire.AppendTag(p.b, protowire.Number(number), protowire.VarintType)
		p.b = protowire.AppendVarint(p.b, v)
	}
}

func (p *wire) int32(number int, v, absent int32) {
	p.uint64(number, uint64(int64(v)), uint64(int64(absent)))
}

func (p *wire) bool(number int, v bool) {
	p.uint64(number, protowire.EncodeBool(v), 0)
}

// openField begins a length-delimited field of n bytes, which the caller appends.
func (p *wire) openField(number, n int) {
	p.b = protowire.AppendTag(p.b, protowire.Number(number), protowire.BytesType)
	p.b = protowire.AppendVarint(p.b, uint64(n))
}

// appendProto appends m as a PBMeta of dialect d, unknown fields last, as the protobuf
// library writes them.
func (m *Meta) appendProto(dst []byte, d Dialect) []byte {
	// The fields that were present when the message was read, or that PS-lite would
	// write for one that was not read.
	p := wire{dst, m.written(d) ^ m.flips}
	p.int32(fieldHead, m.Head, 0)
	if len(m.Body) > 0 || p.has(fieldBody) {
		p.openField(fieldBody, len(m.Body))
		p.b = append(p.b, m.Body...)
	}
	// Its length comes first, so it is written twice.
	if m.Control.Cmd != NoCommand || p.has(fieldControl) {
		p.openField(fieldControl, m.Control.size())
		p.b = m.Control.append(p.b)
	}
	p.bool(fieldRequest, m.Request)
	p.bool(fieldPush, m.Push)
	p.bool(fieldSimpleApp, m.SimpleApp)
	p.int32(fieldAppID, m.AppID, Empty)
	p.int32(fieldTimestamp, m.Timestamp, Empty)
	if len(m.DataTypes) > 0 {
		n := 0
		for _, t := range m.DataTypes {
			n += protowire.SizeVarint(uint64(int64(t)))
		}
		p.openField(fieldDataType, n)
		for _, t := range m.DataTypes {
			p.b = protowire.AppendVarint(p.b, uint64(int64(t)))
		}
	}
	if d != DMLC2017 {
		p.int32(fieldCustomerID, m.CustomerID, 0)
		p.int32(fieldDataSize, m.DataSize, 0)
		if d != DMLC2018 {
			p.bool(fieldPull, m.Pull)
			p.int32(fieldPriority, m.Priority, 0)
		}
	}
	return append(p.b, m.unknown...)
}

// append appends c without tag and length, which its owner has written.
func (c *Control) append(dst []byte) []byte {
	p := wire{dst, c.written() ^ c.flips}
	p.int32(fieldCmd, int32(c.Cmd), 0)
	for i := range c.Nodes {
		p.openField(fieldNode, c.Nodes[i].size())
		p.b = c.Nodes[i].append(p.b)
	}
	p.int32(fieldBarrierGroup, c.BarrierGroup, 0)
	p.uint64(fieldMsgSig, c.MsgSig, 0)
	return append(p.b, c.unknown...)
}

// append appends n without tag and length. All fields of PBNode are always written.
func (n *Node) append(dst []byte) []byte {
	p := wire{dst, nodeFields ^ n.flips}
	p.int32(fieldRole, int32(n.Role), 0)
	p.int32(fieldID, n.ID, Empty)
	if n.Hostname != "" || p.has(fieldHostname) {
		p.openField(fieldHostname, len(n.Hostname))
		p.b = append(p.b, n.Hostname...)
	}
	p.int32(fieldPort, n.Port, 0)
	p.bool(fieldIsRecovery, n.IsRecovery)
	p.int32(fieldNodeCustomerID, n.CustomerID, 0)
	return append(p.b, n.unknown...)
}

// size returns how many bytes append writes. Control messages are rare and small, so
// they are simply written twice.
func (c *Control) size() int {
	var buf [256]byte
	return len(c.append(buf[:0]))
}

func (n *Node) size() int {
	var buf [128]byte
	return len(n.append(buf[:0]))
}
