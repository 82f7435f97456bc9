package pslite

import "google.golang.org/protobuf/encoding/protowire"

// Fork is a fork of PS-lite whose messages are not read here, as far as a meta frame
// shows which. They pass as they are. Naming the fork lets a user see why a job is not
// understood.
type Fork uint8

// The forks that can be recognized by a meta frame.
const (
	NoFork Fork = iota // no known fork
	// Elastic is ps-lite-elastic: dmlc's fields, one more in the nodes, and commands
	// from DEL_NODE (3) on with other numbers. Its data messages are dmlc's.
	Elastic
	// GeoMX is INET-RC/GeoMX: eighteen more fields, commands with other numbers, and
	// node ids from 100 on.
	GeoMX
	// AdaPM is alexrenz/AdaPM: fields from 6 on with other numbers.
	AdaPM
	// Hetu is the parameter server of Hetu and GraphMix: functions instead of pushes
	// and pulls, in seven fields of their own.
	Hetu
	// StepMesh is stepfun-ai/StepMesh: BytePS's struct with more members.
	StepMesh

	Forks // their number, NoFork among them
)

var forkNames = [Forks]string{"", "ps-lite-elastic", "GeoMX", "AdaPM", "Hetu or GraphMix", "StepMesh"}

// String returns the fork's name, or "" for NoFork.
func (f Fork) String() string {
	if f < Forks {
		return forkNames[f]
	}
	return ""
}

// ForkError says why a frame is a meta frame of no dialect.
type ForkError struct{ Fork Fork }

func (e *ForkError) Error() string {
	if e.Fork == NoFork {
		return "pslite: not a meta frame of any dialect"
	}
	return "pslite: a meta frame of " + e.Fork.String() + ", which is not read"
}

// forkErrors are shared, so that refusing a frame allocates nothing: a stream of
// another protocol consists of such frames.
var forkErrors = [Forks]*ForkError{{NoFork}, {Elastic}, {GeoMX}, {AdaPM}, {Hetu}, {StepMesh}}

// has returns the bits of fields.
func has(fields ...protowire.Number) (bits uint32) {
	for _, f := range fields {
		bits |= 1 << f
	}
	return bits
}

var (
	// For each fork the fields that all of its metas have, and all fields that any of
	// them has, of wire type varint.
	hetuAlways = has(2, 4, 6, 7) // request, customer, priority, function
	hetuAll    = hetuAlways | has(3, 5)

	adapmAlways = has(1, 4, 5, 6, 7, 11, 13) // head, the four bools, customer, hops
	adapmAll    = adapmAlways | has(8, 9, 12, 14)

	dmlcAlways  = has(fieldHead, fieldRequest, fieldPush, fieldSimpleApp)
	geomxAlways = dmlcAlways | has(10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 27)
)

// forkOf returns whose meta frame b may be; it is asked only about frames that no
// dialect accepts. Each fork is recognized by the fields that all of its messages have,
// and by having no others.
func forkOf(b []byte) Fork {
	if stepMesh(b) {
		return StepMesh
	}
	// A protobuf of any schema can be walked over: tags say how long their fields are.
	var varints, lengths uint32 // bits of the fields of that wire type
	for rest := b; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || number > 31 {
			return NoFork
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return NoFork
		}
		switch kind {
		case protowire.VarintType:
			varints |= 1 << number
		case protowire.BytesType:
			lengths |= 1 << number
		}
		rest = rest[n+size:]
	}
	switch {
	// The most specific first: what GeoMX writes always includes what dmlc writes.
	case varints&geomxAlways == geomxAlways:
		return GeoMX
	case varints&adapmAlways == adapmAlways && varints&^adapmAll == 0 && lengths&^has(2, 3, 10) == 0:
		return AdaPM
	case varints&hetuAlways == hetuAlways && varints&^hetuAll == 0 && lengths&^has(1) == 0:
		return Hetu
	case varints&dmlcAlways == dmlcAlways && lengths&has(fieldControl) != 0 && elastic(b):
		return Elastic
	}
	return NoFork
}

// elastic reports whether a control message, in dmlc's fields, looks like
// ps-lite-elastic's commands and nodes.
func elastic(b []byte) bool {
	const delNode, barrier, ack, heartbeat = 3, 4, 5, 6
	var m Meta
	if seen, err := m.decodeProto(b, DMLC); err != nil || len(m.unknown) > 0 || !inOrder(seen) {
		return false
	}
	c := &m.Control
	for i := range c.Nodes {
		if u := c.Nodes[i].unknown; len(u) < 2 || len(u) > 3 || u[0] != 6<<3 { // is_scale, often not set to anything
			return false
		}
	}
	// flips is by how much the fields seen differ from those that dmlc writes for this
	// command: so these are the fields that were seen.
	has := c.flips ^ c.written()
	switch c.Cmd {
	case delNode, heartbeat:
		return len(c.Nodes) > 0
	case barrier:
		return has&(1<<fieldBarrierGroup) != 0
	case ack:
		return has&(1<<fieldMsgSig) != 0
	}
	return c.Cmd == Command(AddNode) && len(c.Nodes) > 0
}

// Sizes of StepMesh's struct and of its node records, in bytes.
const (
	stepMeshMeta = 288
	stepMeshNode = rawNodeSize
)

// stepMesh reports whether b is a struct of StepMesh's: its counts stand where BytePS's
// do, and add up to its length.
func stepMesh(b []byte) bool {
	if len(b) < stepMeshMeta {
		return false
	}
	body, types, nodes := uint64(le.Uint32(b[rawBodySize:])), uint64(le.Uint32(b[rawTypeCount:])), uint64(le.Uint32(b[rawNodeCount:]))
	return stepMeshMeta+body+4*types+stepMeshNode*nodes == uint64(len(b))
}
