// Package capture finds the PS-lite messages in a recording of network traffic, as
// tcpdump writes it. It reads pcap or pcapng and yields messages with their time,
// sender, receiver and dialect.
//
// [Read] does all of it. Underneath, [Segments] reads the file's TCP segments,
// [Assembler] puts each direction of a connection in order (repetitions, segments out
// of order, segments that the recording lost), and a stream finds the messages in it,
// even in one whose beginning was not recorded or that has gaps. Everything runs in the
// caller's goroutine.
//
// psidecar decode prints what it finds ([List]), and tests replay recordings by it. Memory
// is bounded by the file's real content, never by what a length field claims.
package capture

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Flow is one direction of a TCP connection.
type Flow struct{ Src, Dst netip.AddrPort }

// Reverse returns the other direction.
func (f Flow) Reverse() Flow { return Flow{f.Dst, f.Src} }

// String returns "source>destination".
func (f Flow) String() string { return f.Src.String() + ">" + f.Dst.String() }

// Message is one PS-lite message of a recording. It and everything that it refers to
// are valid only during the call that hands it over.
type Message struct {
	Time    time.Time // of the packet that completed it
	Flow    Flow
	From    string // "worker0", "server1", "scheduler", or an address where unknown
	To      string
	Dialect pslite.Dialect
	// Message holds the data frames only if Options.Data asked for them and the
	// recording has them whole; see Sizes.
	pslite.Message
	Sizes []uint64 // of the bodies of all frames, identity and meta included, in bytes
}

// KeyCount returns the number of keys in the message, by the size of their frame.
func (m *Message) KeyCount() int {
	return int(m.dataSize(0) / 8)
}

// ValueCount returns the number of values in the message, by the size of their frame
// and their type.
func (m *Message) ValueCount() int {
	size := 1
	if len(m.Meta.DataTypes) > 1 {
		size = m.Meta.DataTypes[1].Size()
	}
	return int(m.dataSize(1) / uint64(size))
}

// dataSize returns the size of the i-th data frame behind the meta.
func (m *Message) dataSize(i int) uint64 {
	if m.Identity != nil {
		i++
	}
	if i+1 >= len(m.Sizes) || !m.Meta.Data() {
		return 0
	}
	return m.Sizes[i+1]
}

// Bytes returns the size of all frame bodies.
func (m *Message) Bytes() (sum uint64) {
	for _, n := range m.Sizes {
		sum += n
	}
	return sum
}

// Options says what to keep of a recording.
type Options struct {
	Data bool // hand over the data frames, not only their sizes
}

// Totals is what a recording held. Every recorded byte of a connection is counted in a
// message's frames, as overhead of these, or in UnsyncedBytes.
type Totals struct {
	Messages      uint64 `json:"messages"`       // PS-lite messages
	Frames        uint64 `json:"frames"`         // their frames, and command frames
	BodyBytes     uint64 `json:"body_bytes"`     // of these frames' bodies
	UnsyncedBytes uint64 `json:"unsynced_bytes"` // recorded, but no part of a whole message
	Connections   uint64 `json:"connections"`    // with any bytes, each direction counted

	// The rest says why something may be missing.
	MissingBytes   uint64 `json:"-"` // sent, as later segments show, but not recorded
	ForeignStreams uint64 `json:"-"` // directions that are not ZMTP
	NotPSLite      uint64 `json:"-"` // ZMTP messages that are of no dialect
	// Forks counts those of NotPSLite whose metas show a known fork.
	Forks          [pslite.Forks]uint64 `json:"-"`
	SkippedPackets uint64               `json:"-"` // not TCP over IP, or fragments
	TooMany        uint64               `json:"-"` // segments ignored because too many connections were open
}

// Read finds the messages in a pcap or pcapng file and hands each to emit, in the order
// in which they were completed. An error of emit ends it. If the file is cut off or
// damaged, what was before that is handed over and counted, and the error says where.
func Read(r io.Reader, opt Options, emit func(*Message) error) (Totals, error) {
	job := newJob(opt, emit)
	// The streams call emit, whose error ends the reading of the file with the segment
	// at hand.
	a := NewAssembler(job.openDirection)
	skipped, err := Segments(r, func(s *Segment) error {
		a.Add(s)
		return job.err
	})
	a.Close()
	job.totals.SkippedPackets = skipped
	job.totals.MissingBytes = a.Missing
	job.totals.TooMany = a.Ignored
	// The caller's own error matters more than the one by which Segments stopped.
	if job.err != nil {
		err = job.err
	}
	return job.totals, err
}

// job is what all streams of one recording share. A capture is taken to be of one job:
// there is one node table.
type job struct {
	opt    Options
	emit   func(*Message) error
	err    error
	totals Totals
	table  pslite.Table
	ids    map[Flow]int32 // of the senders, by their READY
	msg    Message        // reused
}

func newJob(opt Options, emit func(*Message) error) *job {
	return &job{opt: opt, emit: emit, ids: map[Flow]int32{}}
}

// openDirection starts the reading of one direction.
func (j *job) openDirection(f Flow, late bool) Sink {
	j.totals.Connections++
	delete(j.ids, f) // of an older connection between the same ports
	return newStream(j, f, late)
}

// name returns the name of the node that listens at addr, or the address.
func (j *job) name(addr netip.AddrPort) string {
	if id, ok := j.table.At(addr); ok {
		if name := pslite.NodeName(id); name != "" {
			return name
		}
	}
	return addr.String()
}

// An Error says where a capture file is damaged.
type Error struct {
	Offset  int64 // bytes read so far
	Packets int   // packets read before
	Err     error
}

func (e *Error) Error() string {
	return fmt.Sprintf("capture: after %d packets, near byte %d: %v", e.Packets, e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
