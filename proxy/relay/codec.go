package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// Message is a message as shown to a [Sender]: all frames of a small one, or the leading frames of
// a large one. The memory is the relay's, and valid during the call only.
type Message struct {
	Frames [][]byte // leading frames, held whole: meta, keys and, in small messages, the others
	Rest   bool     // more frames follow, which are not held
	Next   uint64   // with Rest: the size of the first of those, in bytes; mostly the values
	// Forced means that the message is encoded whether that pays or not.
	Forced bool
	// Detector knows the dialect of the message's stream; nil: the message alone has to show it.
	Detector *pslite.Detector
	decoded  *decoded // nil: not decoded yet
}

// decoded is a message as package pslite reads it. The relay reuses one for all messages of a
// direction.
type decoded struct {
	is      bool // false: this is an earlier message
	message pslite.Message
	dialect pslite.Dialect
	meta    error // error of decoding the meta
	err     error // error of decoding any of it
}

// Decode returns the message as package pslite reads it, and its dialect. The result is cached: all
// codecs that see the message share it, and its memory is the relay's too. With an error the
// message holds what could be read, as for a message of which only the beginning is shown.
func (m *Message) Decode() (*pslite.Message, pslite.Dialect, error) {
	d := m.decode()
	return &d.message, d.dialect, d.err
}

func (m *Message) decode() *decoded {
	if m.decoded == nil {
		m.decoded = new(decoded)
	}
	d := m.decoded
	if d.is {
		return d
	}
	if m.Detector == nil {
		m.Detector = new(pslite.Detector)
	}
	d.is = true
	d.dialect, d.meta = d.message.DecodeMeta(m.Detector, m.Frames)
	if d.err = d.meta; d.err == nil {
		d.err = d.message.Check()
	}
	return d
}

// Sender encodes the messages of one direction of one link. All calls come from one goroutine.
type Sender interface {
	// Encode appends the encoded form of m, called its head, to dst. It is called for every message
	// of the direction that can be encoded, in order. Bit i of plain means that Frames[i] is not in
	// the head and follows as it is, as frames that are not held always do. With ok false the
	// message passes as it is, and what was appended is discarded. Otherwise the head is sent, and
	// the Sender may rely on the Receiver getting it, in order, unless the link ends.
	Encode(dst []byte, m *Message) (head []byte, plain uint32, ok bool)
	Close()
}

// Holder is a [Sender] that also wants to see whole messages that are larger than the relay would
// hold.
type Holder interface {
	// Hold is shown the beginning of such a message, with Rest set, once and before Encode, and
	// reports whether all of it is wanted. Up to [HoldLimit] bytes it is then held and shown to
	// Encode, unless memory is at its bound: then it passes unseen, which is counted
	// (FlowCounts.Unheld).
	Hold(m *Message) bool
}

// Greeter is a [Sender], [Observer], [Gatherer] or [Hearer] that wants to know which node sends. It
// is shown the READY command of the job's process, before any message.
type Greeter interface {
	Ready(r zmtp.Ready)
}

// Observer sees what the job's process sends, on a connection without a codec or with one that is
// not its own. It may be a [Greeter].
type Observer interface {
	// Observe is shown each message as Encode would be, of large ones the leading frames, and
	// reports whether it wants to see more. The message waits until it returns.
	Observe(m *Message) (more bool)
	Close()
}

// Initiator is a [Sender] that has messages of its own to send.
type Initiator interface {
	// Initiate appends the head of the next one to dst; ok is false where there is none. It is
	// called by the goroutine that calls Encode, between two messages of the job and after
	// [Link.Wake].
	Initiate(dst []byte) (head []byte, ok bool)
}

// Receiver decodes what the [Sender] at the other end encoded. All calls come from one goroutine.
type Receiver interface {
	// Decode is the inverse of Encode. Frames whose bit in plain is set come from the link, as do
	// all frames after those returned; their elements in frames are ignored. The frames are valid
	// until the next call, and may be slices of head. No frames means that the message was for the
	// codec alone. An error ends the link.
	Decode(head []byte) (frames [][]byte, plain uint32, err error)
	Close()
}

// Releaser is a [Receiver] that wants to know when the frames that Decode returned have been
// written, so that it can give their memory back before the next message.
type Releaser interface {
	Release()
}

// Sharer is a [Sender] whose messages may go in part over another connection, which several links
// share.
type Sharer interface {
	// Elsewhere returns, for the message that was encoded last, how many bytes went over that
	// connection, and how many were not sent at all because the other end had them from another
	// link.
	Elsewhere() (lane, spared int)
	// MayWait reports whether encoding a message of that many bytes may block until the other end
	// has used earlier ones. If so, those are written first.
	MayWait(bytes int) bool
}

// Waiter is a [Receiver] that may wait for another connection while it decodes.
type Waiter interface {
	// Waits reports whether decoding the head may block. If so, what came before is written first.
	Waits(head []byte) bool
}

// Aborter is a [Sender] or [Receiver] whose calls may wait for other connections.
type Aborter interface {
	// Abort ends such waiting, because the link is about to be reset. It may be called by any
	// goroutine, more than once.
	Abort()
}

// ErrLinkLost is wrapped by errors of [Receiver.Decode] that do not mean a malformed head: what it
// refers to was lost with this link or another one. The connection then ends as a broken one.
var ErrLinkLost = errors.New("lost with the link")

// Codec makes pairs of Sender and Receiver for links. It is safe for concurrent use.
type Codec interface {
	Name() string
	// Offer returns what this end can decode, in at most [MaxOffer] bytes that only the codec
	// understands. It goes into the link's hello.
	Offer() []byte
	// Open is called at both ends of a link, with the other end's offer. The Sender and the
	// Receiver are used by one goroutine each, concurrently.
	Open(l Link, offered []byte) (Sender, Receiver, error)
}

// MaxOffer is the maximum size of a [Codec.Offer], in bytes.
const MaxOffer = 1 << 10

// Instance identifies a proxy process by random bytes.
type Instance [16]byte

// Link is what a codec may know of the link that it serves.
type Link struct {
	ID               uint64 // unique among those that Dialer dialed
	Dialer, Acceptor Instance
	Dialed           bool           // this end is the dialer's
	Client           netip.AddrPort // of the job's process that connected
	Destination      netip.AddrPort // of the process that it connected to
	Job              string         // its scheduler's address, where the dialer's end knows it
	Origin           string         // at the dialer's end: identifies, with the node's id, the process that connected
	Continues        bool           // at the dialer's end: the process's connection went over another link before
	HeadLimit        int            // in bytes; for a longer head a Sender returns ok false
	Memory           *Memory        // for what a codec needs while it decodes a large message
	Wake             func()         // has the relay call this end's [Initiator]; for any goroutine
	Routes           Routes         // at the dialer's end; nil: requests go where their process sends them
	// Altered, where set, is called before a message is encoded that will differ at the other end,
	// or one of the Sender's own.
	Altered func()
	// Scope identifies the job of the process at the dialer's end. Values sent to processes of
	// another host are shared within a scope only. Empty: unknown, nothing is shared.
	Scope string
	// Lane, at the dialer's end, makes a connection to the other proxy for the codec of this name,
	// which gets data there; nil: it cannot be made.
	Lane func(ctx context.Context, data []byte) (net.Conn, error)
	// Alive reports whether the link's connection is still established, as far as the kernel knows;
	// nil: unknown.
	Alive func() bool
	// Pays reports whether encoding the next message is worth its time; nil: always. Only the
	// goroutine that calls Encode may call it. A Sender asks it about messages that no rule asks to
	// have encoded.
	Pays func() bool
	// PerByte returns how many nanoseconds the way to the other host takes for a byte, and false
	// while that is unknown; nil: messages are to be encoded whatever that costs. Any goroutine may
	// call it.
	PerByte func() (float64, bool)
}

// Routes is a codec's view of package route, which sends a process's requests to the servers that
// have their keys. It is safe for concurrent use.
type Routes interface {
	// Whole returns the timestamp that the process gave the request that a part with this timestamp
	// belongs to, and false where it is no part.
	Whole(part int32) (timestamp int32, ok bool)
	// Settled moves what codecs keep of the process's requests along with keys that have moved
	// ([values.Codec.Follow]), and reports whether all keys are where they are known to be. A codec
	// that has announced a message of its own can then send it: no key moves until that is over.
	Settled() bool
	// Assigns reports whether it is known that the servers assign pushes.
	Assigns() bool
}
