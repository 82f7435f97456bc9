package bpf

import (
	"fmt"
	"net/netip"
)

// A Direction says on which side of the socket a segment was seen.
type Direction uint8

// Directions of a stream.
const (
	Egress  Direction = 0 // sent by the watched process
	Ingress Direction = 1 // received by the watched process
)

func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// A StreamID identifies one direction of a connection: the kernel's socket cookie, which is
// unique until reboot, and the direction in the lowest bit.
type StreamID uint64

// NewStreamID returns the id of one direction of the socket with that cookie.
func NewStreamID(cookie uint64, d Direction) StreamID { return StreamID(cookie<<1 | uint64(d)) }

// Cookie is the kernel's socket cookie.
func (s StreamID) Cookie() uint64 { return uint64(s) >> 1 }

// Egress returns the stream that the same socket sends.
func (s StreamID) Egress() StreamID { return s &^ 1 }

// Direction of the stream.
func (s StreamID) Direction() Direction { return Direction(s & 1) }

func (s StreamID) String() string { return fmt.Sprintf("%d/%s", s.Cookie(), s.Direction()) }

// A Kind says what a [Record] holds. The values are those of enum kind in wire.h.
type Kind uint8

// Kinds of records, in the order in which a stream usually brings them.
const (
	// KindOpen: the stream speaks ZMTP (new connections), or was found to be
	// PS-lite (older ones, flag Late). [Record.Endpoints] names both ends.
	KindOpen Kind = 1
	// KindCommand: a ZMTP command frame; Data is its body (READY first, with
	// the peer's identity), cut after 256 bytes.
	KindCommand Kind = 2
	// KindMeta: a chunk of a message's meta frame; nearly always the whole frame.
	KindMeta Kind = 3
	// KindKeys: a chunk of the key frame of a sampled request. Chunks are consecutive, but may
	// begin and end inside a key.
	KindKeys Kind = 4
	// KindLens: a chunk of the lens frame of a sampled message.
	KindLens Kind = 6
	// KindEnd: a message of more than one frame is complete;
	// [Record.FrameBytes] has its frames' lengths. It comes for every message
	// whose meta was copied. A message of one frame ends with its meta (flag
	// EndsMessage).
	KindEnd Kind = 7
	// KindUnsynced: the frame boundary was lost. Nothing more comes of the message in progress.
	// Offset is the number of bytes that have passed in rests so far, as with KindSynced.
	KindUnsynced Kind = 8
	// KindSynced: the boundary was found again, or first. Length is the
	// number of bytes missed until here, over the stream's whole life.
	KindSynced Kind = 9
	// KindClose: FIN or RST was seen. Repeated segments may still follow.
	KindClose Kind = 10
	// KindForeign: the stream, which was opened before, turned out not to be PS-lite. It is the
	// stream's last record.
	KindForeign Kind = 11
	// KindLost is added by the reader, not the kernel: Length batches of this stream did not
	// fit into the ring buffer. Messages in progress are incomplete; Message is the number of
	// the message at which the stream continues.
	KindLost Kind = 12
	// KindKeyRun is like KindKeys for keys at equal distances, which are described by
	// [Record.KeyRun] instead of being copied. Offset counts as if they had been.
	KindKeyRun Kind = 13
)

var kindNames = [...]string{"0", "open", "command", "meta", "keys", "values", "lens", "end",
	"unsynced", "synced", "close", "foreign", "lost", "key run"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Flags of a [Record], with the values of enum flag in wire.h.
type Flags uint8

// Bits of Flags.
const (
	// EndsFrame: Data reaches the end of its frame.
	EndsFrame Flags = 1 << iota
	// EndsMessage: the message ends with this record.
	EndsMessage
	// Sampled: the message's timestamp is in a sampled window, so its key and lens frames are
	// copied if it has any.
	Sampled
	// Incomplete: bytes of the message never passed the program, because of a gap in the
	// sequence numbers inside a frame that it stepped over.
	Incomplete
	// Late: the connection is older than the capture.
	Late
	// Unparsed: the meta frame is of no dialect that the kernel knows. The message counts as
	// not sampled.
	Unparsed
	// Truncated: the rest of the command is not copied.
	Truncated
)

// A Record is something seen on a stream. Records of a stream come in the order of its bytes. A
// Record and its Data belong to the reader and are valid only until the callback returns.
type Record struct {
	Kind   Kind
	Flags  Flags
	Frame  uint8 // number of the frame in its message: 0 meta, 1 keys, 2 values, 3 lens
	rate   uint8 // binary logarithm of OneIn plus 1; 0: not rated
	Stream StreamID
	// Time is when the segment passed the program, in nanoseconds of CLOCK_MONOTONIC. All
	// records of a segment have the same.
	Time uint64
	// Message numbers the stream's messages from 0. Numbers that are missing belong to messages
	// of which nothing was copied.
	Message uint64
	// Offset of Data in its frame, in bytes. For KindEnd, the size of the whole message
	// including frame headers.
	Offset uint64
	// Length of the frame in bytes, whichever part of it Data is.
	Length uint64
	Data   []byte
}

// Has reports whether all bits of f are set.
func (r *Record) Has(f Flags) bool { return r.Flags&f == f }

// OneIn returns the rate at which the stream was sampled when the record's message passed, if
// it has a rate of its own ([Capture.SetRate]) and the message is sampled; otherwise 0.
func (r *Record) OneIn() uint32 {
	if r.rate == 0 {
		return 0
	}
	return 1 << (r.rate - 1)
}

// FrameBytes returns the lengths of the frames (meta, keys, values, lens) of the message that a
// KindEnd record ends, without frame headers.
func (r *Record) FrameBytes() (lengths [4]uint64) {
	if r.Kind != KindEnd || len(r.Data) < 32 {
		return lengths
	}
	for i := range lengths {
		lengths[i] = native.Uint64(r.Data[8*i:])
	}
	return lengths
}

// KeyRun returns the keys of a KindKeyRun record: n keys, the first one, and the distance from
// each to the next, modulo 2^64.
func (r *Record) KeyRun() (first, step, n uint64) {
	if r.Kind != KindKeyRun || len(r.Data) < 24 {
		return 0, 0, 0
	}
	return native.Uint64(r.Data), native.Uint64(r.Data[8:]), native.Uint64(r.Data[16:])
}

// Endpoints returns the addresses of the watched process's socket and of its peer from a
// KindOpen record, whatever its direction.
func (r *Record) Endpoints() (local, peer netip.AddrPort) {
	if r.Kind != KindOpen || len(r.Data) < endpointsSize {
		return local, peer
	}
	return parseEndpoints(r.Data)
}
