// Package pslite reads and writes what PS-lite's nodes say to each other: the meta
// frame in every dialect in use, the data frames behind it, node ids, key ranges, the
// node table and the resender's signatures.
//
// Frames come in as package zmtp cuts them. [Detector.Decode] turns a meta frame into a
// [Meta] and finds out by itself which dialect a connection speaks; [Message] is the
// view of a whole message; [Meta.Append] writes a meta frame, byte for byte as it was
// read if nothing was changed. Nothing is copied unless it has to be, and reading a
// data message allocates nothing.
//
// The rule throughout is that a proxy must not change what it does not understand, and
// must not understand what it cannot be sure of: unknown fields are kept, and frames of
// forks are refused rather than guessed at.
//
// The capture decoder, the agent, the proxy and psjob call it. It does no input or
// output and imports nothing of this module. Its types are plain data, not safe for
// concurrent use while one goroutine writes.
package pslite

// Empty stands for "not set" in ids, timestamps and heads.
const Empty int32 = 0x7fffffff

// Command is a control message's command.
type Command int32

// The commands; those from Bootstrap on are BytePS's.
//
//   - Terminate is a node's message to itself, which ends its receiving thread.
//   - AddNode registers a node with the scheduler, whose answer has the table of
//     all nodes.
//   - Barrier reports a node at the barrier of a group; the scheduler's answer
//     opens it.
//   - Ack acknowledges a message by its signature, with PS_RESEND.
//   - Heartbeat says that a node is alive; the scheduler answers it.
const (
	NoCommand Command = iota
	Terminate
	AddNode
	Barrier
	Ack
	Heartbeat
	Bootstrap
	AddrRequest
	AddrResolved
	InstanceBarrier
)

var commandNames = [...]string{
	"EMPTY", "TERMINATE", "ADD_NODE", "BARRIER", "ACK", "HEARTBEAT",
	"BOOTSTRAP", "ADDR_REQUEST", "ADDR_RESOLVED", "INSTANCE_BARRIER",
}

// String returns the command's name as PS-lite spells it.
func (c Command) String() string {
	if c >= 0 && int(c) < len(commandNames) {
		return commandNames[c]
	}
	return "UNKNOWN"
}

// Role is what a node does in the job.
type Role int32

// The roles; Joint, a worker and server in one process, is BytePS's.
const (
	Server Role = iota
	Worker
	Scheduler
	Joint
)

// String returns the role's name as DMLC_ROLE spells it.
func (r Role) String() string {
	switch r {
	case Server:
		return "server"
	case Worker:
		return "worker"
	case Scheduler:
		return "scheduler"
	case Joint:
		return "joint"
	}
	return "unknown"
}

// DataType is the type of one data frame's elements.
type DataType int32

// The data types, by their numbers on the wire. PS-lite derives them from C++ types;
// Other is any type that it does not know.
const (
	Char DataType = iota
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float
	Double
	Other
)

var dataTypeSizes = [...]int{1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 1}

// Size returns the bytes that an element takes; 1 for a type that is no number.
func (t DataType) Size() int {
	if t >= 0 && int(t) < len(dataTypeSizes) {
		return dataTypeSizes[t]
	}
	return 1
}
