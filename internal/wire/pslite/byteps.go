package pslite

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Layout of BytePS's meta: a C struct with the alignment of 64-bit Linux, little
// endian, then the body, the data types (int32 each) and the nodes. BytePS copies the
// struct as it lies in memory, padding included. The offsets were read off a recording.
const (
	rawHead         = 0
	rawBodySize     = 4
	rawCmd          = 8
	rawNodeCount    = 12
	rawBarrierGroup = 16
	rawMsgSig       = 24
	rawRequest      = 32 // bool, as are push and simple app
	rawAppID        = 36
	rawTimestamp    = 40
	rawTypeCount    = 44
	rawDevices      = 48 // source type and id, destination type and id
	rawCustomerID   = 64
	rawPush         = 68
	rawSimpleApp    = 69
	rawDataSize     = 72
	rawKey          = 80
	rawAddr         = 88
	rawValLen       = 96
	rawOption       = 100
	rawSID          = 104
	rawMetaSize     = 112
)

// Layout of a node record, relative to its beginning.
const (
	rawNodeRole        = 0
	rawNodeID          = 4
	rawNodeHostname    = 8 // 64 bytes, ended by a zero
	rawNodeNumPorts    = 72
	rawNodePorts       = 76
	rawNodePort        = 204
	rawNodeDevTypes    = 208
	rawNodeDevIDs      = 336
	rawNodeIsRecovery  = 464
	rawNodeCustomerID  = 468
	rawNodeEndpoint    = 472
	rawNodeEndpointLen = 536
	rawNodeAuxID       = 544
	rawNodeSize        = 552
)

// rawEmpty is BytePS's number for an unset field. In a node's id it is read as Empty;
// heads and app ids keep it, where it may be a number like others.
const rawEmpty int32 = 32767

var le = binary.LittleEndian

func int32At(b []byte, at int) int32 { return int32(le.Uint32(b[at:])) }

func putInt32(b []byte, at int, v int32) { le.PutUint32(b[at:], uint32(v)) }

// bytePSSizes returns the three counts of a BytePS meta if they add up to its length
// exactly, which they do in no protobuf that was ever seen. Bools and the command must
// have values that BytePS writes: those checks make it safe to try this form on any
// frame.
func bytePSSizes(b []byte) (body, types, nodes int, err error) {
	if len(b) < rawMetaSize {
		return 0, 0, 0, fmt.Errorf("pslite: BytePS meta of %d bytes, at least %d are needed", len(b), rawMetaSize)
	}
	// In 64 bits, since the counts are of 32: their sum cannot wrap around, and equals
	// the length of a real frame.
	n := [3]uint64{uint64(le.Uint32(b[rawBodySize:])), uint64(le.Uint32(b[rawTypeCount:])), uint64(le.Uint32(b[rawNodeCount:]))}
	if want := rawMetaSize + n[0] + 4*n[1] + rawNodeSize*n[2]; want != uint64(len(b)) {
		return 0, 0, 0, fmt.Errorf("pslite: BytePS meta of %d bytes, its counts make %d", len(b), want)
	}
	for _, at := range [...]int{rawRequest, rawPush, rawSimpleApp} {
		if b[at] > 1 {
			return 0, 0, 0, fmt.Errorf("pslite: BytePS meta with %d for a bool at byte %d", b[at], at)
		}
	}
	if cmd := Command(int32At(b, rawCmd)); cmd < NoCommand || cmd > InstanceBarrier {
		return 0, 0, 0, fmt.Errorf("pslite: BytePS meta with the unknown command %d", cmd)
	}
	return int(n[0]), int(n[1]), int(n[2]), nil
}

// decodeBytePS reads a meta in BytePS's form. m refers to b afterwards: its body always
// does, and if the padding is not zero, which Append would write, m keeps the frame as
// read.
func (m *Meta) decodeBytePS(b []byte) error {
	body, types, nodes, err := bytePSSizes(b)
	if err != nil {
		return err
	}
	m.Reset()
	m.Head = int32At(b, rawHead)
	m.AppID = int32At(b, rawAppID)
	m.CustomerID = int32At(b, rawCustomerID)
	m.Timestamp = int32At(b, rawTimestamp)
	m.Request = b[rawRequest] != 0
	m.Push = b[rawPush] != 0
	m.SimpleApp = b[rawSimpleApp] != 0
	m.DataSize = int32At(b, rawDataSize)
	m.Control.Cmd = Command(int32At(b, rawCmd))
	m.Control.BarrierGroup = int32At(b, rawBarrierGroup)
	m.Control.MsgSig = le.Uint64(b[rawMsgSig:])
	// BytePS has no such field: a data message is one or the other.
	m.Pull = m.Data() && !m.Push
	m.BytePS = BytePS{
		Key: le.Uint64(b[rawKey:]), Addr: le.Uint64(b[rawAddr:]),
		ValLen: int32At(b, rawValLen), Option: int32At(b, rawOption), SID: int32At(b, rawSID),
		SrcDevType: int32At(b, rawDevices), SrcDevID: int32At(b, rawDevices+4),
		DstDevType: int32At(b, rawDevices+8), DstDevID: int32At(b, rawDevices+12),
	}
	rest := b[rawMetaSize:]
	m.Body, rest = rest[:body:body], rest[body:]
	for i := range types {
		m.DataTypes = append(m.DataTypes, DataType(int32At(rest, 4*i)))
	}
	rest = rest[4*types:]
	// The compiler's padding between the members, which the sender never sets.
	clean := zero(b[rawBarrierGroup+4:rawMsgSig]) && zero(b[rawRequest+1:rawAppID]) &&
		zero(b[rawSimpleApp+1:rawDataSize]) && zero(b[rawDataSize+4:rawKey]) && zero(b[rawSID+4:rawMetaSize])
	for range nodes {
		var n Node
		clean = n.decodeBytePS(rest[:rawNodeSize]) && clean
		m.Control.Nodes = append(m.Control.Nodes, n)
		rest = rest[rawNodeSize:]
	}
	if !clean {
		m.raw = b
	}
	return nil
}

func zero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// decodeBytePS reads a node record and reports whether Append would write it as it is:
// the padding, the bytes behind the hostname and the form of the id are what it
// reproduces only if they are clean.
func (n *Node) decodeBytePS(b []byte) (clean bool) {
	host := b[rawNodeHostname:rawNodeNumPorts]
	name, tail, _ := bytes.Cut(host, []byte{0})
	*n = Node{
		Role: Role(int32At(b, rawNodeRole)), ID: int32At(b, rawNodeID),
		Hostname: string(name), Port: int32At(b, rawNodePort),
		IsRecovery: b[rawNodeIsRecovery] != 0, CustomerID: int32At(b, rawNodeCustomerID),
		BytePS: &BytePSNode{
			NumPorts:        int32At(b, rawNodeNumPorts),
			EndpointName:    [64]byte(b[rawNodeEndpoint:]),
			EndpointNameLen: le.Uint64(b[rawNodeEndpointLen:]),
			AuxID:           int32At(b, rawNodeAuxID),
		},
	}
	for i := range n.BytePS.Ports {
		n.BytePS.Ports[i] = int32At(b, rawNodePorts+4*i)
		n.BytePS.DevTypes[i] = int32At(b, rawNodeDevTypes+4*i)
		n.BytePS.DevIDs[i] = int32At(b, rawNodeDevIDs+4*i)
	}
	// Empty on the wire would be written as rawEmpty, so such a record is not clean.
	unset := n.ID == Empty
	if n.ID == rawEmpty {
		n.ID = Empty
	}
	return !unset && zero(tail) && b[rawNodeIsRecovery] <= 1 &&
		zero(b[rawNodeIsRecovery+1:rawNodeCustomerID]) && zero(b[rawNodeAuxID+4:rawNodeSize])
}

// appendBytePS appends m in BytePS's form, with padding of zeros. Counts are those of
// the slices.
func (m *Meta) appendBytePS(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, rawMetaSize)...)
	b := dst[start:]
	putInt32(b, rawHead, m.Head)
	putInt32(b, rawBodySize, int32(len(m.Body)))
	putInt32(b, rawCmd, int32(m.Control.Cmd))
	putInt32(b, rawNodeCount, int32(len(m.Control.Nodes)))
	putInt32(b, rawBarrierGroup, m.Control.BarrierGroup)
	le.PutUint64(b[rawMsgSig:], m.Control.MsgSig)
	putBool(b, rawRequest, m.Request)
	putInt32(b, rawAppID, m.AppID)
	putInt32(b, rawTimestamp, m.Timestamp)
	putInt32(b, rawTypeCount, int32(len(m.DataTypes)))
	for i, v := range [...]int32{m.BytePS.SrcDevType, m.BytePS.SrcDevID, m.BytePS.DstDevType, m.BytePS.DstDevID} {
		putInt32(b, rawDevices+4*i, v)
	}
	putInt32(b, rawCustomerID, m.CustomerID)
	putBool(b, rawPush, m.Push)
	putBool(b, rawSimpleApp, m.SimpleApp)
	putInt32(b, rawDataSize, m.DataSize)
	le.PutUint64(b[rawKey:], m.BytePS.Key)
	le.PutUint64(b[rawAddr:], m.BytePS.Addr)
	putInt32(b, rawValLen, m.BytePS.ValLen)
	putInt32(b, rawOption, m.BytePS.Option)
	putInt32(b, rawSID, m.BytePS.SID)
	dst = append(dst, m.Body...)
	for _, t := range m.DataTypes {
		dst = le.AppendUint32(dst, uint32(t))
	}
	for i := range m.Control.Nodes {
		dst = m.Control.Nodes[i].appendBytePS(dst)
	}
	return dst
}

func putBool(b []byte, at int, v bool) {
	if v {
		b[at] = 1
	}
}

// appendBytePS appends a node record, with the hostname cut to 64 bytes. A node that
// was not read from BytePS gets the values of a process with one port.
func (n *Node) appendBytePS(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, rawNodeSize)...)
	b := dst[start:]
	putInt32(b, rawNodeRole, int32(n.Role))
	id := n.ID
	if id == Empty {
		id = rawEmpty
	}
	putInt32(b, rawNodeID, id)
	copy(b[rawNodeHostname:rawNodeNumPorts], n.Hostname)
	putInt32(b, rawNodePort, n.Port)
	putBool(b, rawNodeIsRecovery, n.IsRecovery)
	putInt32(b, rawNodeCustomerID, n.CustomerID)
	x := n.BytePS
	if x == nil {
		x = &BytePSNode{NumPorts: 1, Ports: [32]int32{n.Port}, AuxID: -1}
	}
	putInt32(b, rawNodeNumPorts, x.NumPorts)
	for i := range x.Ports {
		putInt32(b, rawNodePorts+4*i, x.Ports[i])
		putInt32(b, rawNodeDevTypes+4*i, x.DevTypes[i])
		putInt32(b, rawNodeDevIDs+4*i, x.DevIDs[i])
	}
	copy(b[rawNodeEndpoint:], x.EndpointName[:])
	le.PutUint64(b[rawNodeEndpointLen:], x.EndpointNameLen)
	putInt32(b, rawNodeAuxID, x.AuxID)
	return dst
}
