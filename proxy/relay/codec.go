package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// Message is what a [Sender] is shown: all frames of a small message, or the
// leading ones of a large one. The memory is the relay's, valid during the
// call.
type Message struct {
	Frames [][]byte // leading frames, held whole: meta, keys and, in small messages, the others
	Rest   bool     // frames follow that are not held
	Next   uint64   // with Rest: bytes in the body of the first of them, as a rule the values
	// Forced: it is encoded whether that pays or not.
	Forced bool
	// Detector knows the dialect of the stream that the message is of; nil: the
	// message alone shows it.
	Detector *pslite.Detector
	decoded  *decoded // nil: not yet asked for
}

// decoded is a message as package pslite reads it.
type decoded struct {
	is      bool // else it is of an earlier message
	message pslite.Message
	dialect pslite.Dialect
	meta    error // the fault of its meta
	err     error // or with all of it
}

// Decode returns the message as package pslite reads it, and its dialect. All
// codecs that see the message share it, so that its meta is decoded once; its
// memory is the relay's too. With an error it is what could be read, as of a
// message of which only the beginning is shown.
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

// Sender encodes the messages of one direction of one link.
type Sender interface {
	// Encode appends the encoded form of m, called its head, to dst. Bit i of
	// plain says that Frames[i] is not in the head but follows as it is, as
	// frames that are not held always do. With ok false the message goes as it
	// is, and what was appended is forgotten; otherwise the head is sent. A
	// Sender is shown every message of its direction that can be encoded, in
	// order, by one goroutine.
	Encode(dst []byte, m *Message) (head []byte, plain uint32, ok bool)
	Close()
}

// Holder is a [Sender] that also wants messages whole which are larger than the
// relay holds by itself.
type Holder interface {
	// Hold is shown the beginning of such a message, with Rest set, once and
	// before Encode is, and reports whether all of it is wanted. Up to
	// [HoldLimit] bytes it is then held and shown to Encode, unless memory is at
	// its bound: then it passes as it is and unseen, which is counted.
	Hold(m *Message) bool
}

// Greeter is a [Sender] that wants to know which node sends: it is shown the
// READY command of the job's process, before any message.
type Greeter interface {
	Ready(r zmtp.Ready)
}

// Observer sees what the job's process sends on a connection that goes as it is, or
// by another codec. It may be a [Greeter].
type Observer interface {
	// Observe is shown each message as Encode is, of large ones the first frames,
	// and reports whether it wants to see more. The message waits until it returns.
	Observe(m *Message) (more bool)
	Close()
}

// Initiator is a [Sender] that has messages of its own to send.
type Initiator interface {
	// Initiate appends the head of the next of them; ok is false where there is
	// none. It is called by the goroutine that calls Encode, between messages
	// of the job and when [Link.Wake] was.
	Initiate(dst []byte) (head []byte, ok bool)
}

// Receiver decodes what the [Sender] at the other end encoded.
type Receiver interface {
	// Decode undoes Encode. Frames whose bit of plain is set come from the
	// link and are ignored here, and so do all after those returned. The
	// frames are valid until the next call and may be slices of head. Without
	// frames the message was for the codec alone. An error ends the link.
	Decode(head []byte) (frames [][]byte, plain uint32, err error)
	Close()
}

// Releaser is a [Receiver] that is notified when the frames that Decode returned
// have been written: its memory can be given back before the next message comes.
type Releaser interface {
	Release()
}

// Sharer is a [Sender] whose messages may go in part over another connection.
type Sharer interface {
	// Elsewhere says of the message that was last encoded how many bytes went there,
	// and how many went nowhere, since the other end had them of another link.
	Elsewhere() (lane, spared int)
	// MayWait reports whether encoding a message of that many bytes may wait until
	// the other end has used earlier ones, which are written first.
	MayWait(bytes int) bool
}

// Waiter is a [Receiver] that may wait for another connection while it decodes.
type Waiter interface {
	// Waits reports whether decoding the head may: what came before is written first.
	Waits(head []byte) bool
}

// Aborter is a [Sender] or [Receiver] whose calls may wait for other connections.
type Aborter interface {
	// Abort ends their waiting: the link is about to be reset. Any goroutine may call it.
	Abort()
}

// ErrLinkLost is wrapped by errors of [Receiver.Decode] that are not of the head: what
// it refers to is lost with the link, or with another one.
var ErrLinkLost = errors.New("lost with the link")

// Codec makes pairs of Sender and Receiver for links.
type Codec interface {
	Name() string
	// Offer says what this side can decode, at most [MaxOffer] bytes that only
	// the codec understands.
	Offer() []byte
	// Open is called at both ends of a link, with what the other end offered.
	// Sender and Receiver are used by a goroutine each.
	Open(l Link, offered []byte) (Sender, Receiver, error)
}

// MaxOffer is the size of the largest [Codec.Offer], in bytes.
const MaxOffer = 1 << 10

// Instance names a proxy process: random bytes.
type Instance [16]byte

// Link is what a codec can know of the link that it serves.
type Link struct {
	ID               uint64 // unique among those that Dialer dialed
	Dialer, Acceptor Instance
	Dialed           bool           // this end is the dialer's
	Client           netip.AddrPort // the job's process that connected
	Destination      netip.AddrPort // to which it connected
	Job              string         // its scheduler's address, where the dialer's end knows it
	Origin           string         // at the dialer's end: with the node's id this names the process that connected
	HeadLimit        int            // a Sender returns ok = false rather than a longer head
	Memory           *Memory        // for what a codec needs while it decodes a large message
	Wake             func()         // has the relay ask this end's [Initiator], from any goroutine
	Routes           Routes         // at the dialer's end: nil where requests go where their process sends them
	// Altered is called before a message is encoded that comes out otherwise at the
	// other end, or one of the Sender's own; nil: nobody wants to know.
	Altered func()
	// Scope names the job that the process at the dialer's end is of: values sent to
	// processes of another host are shared among those of one scope. Empty: it is not
	// known.
	Scope string
	// Lane, at the dialer's end, makes a connection to the other proxy for a codec of
	// this name, with what it is to know of it; nil: there is none.
	Lane func(ctx context.Context, data []byte) (net.Conn, error)
	// Alive reports whether the link's connection has not ended, as far as the kernel
	// knows; nil: nobody knows.
	Alive func() bool
	// Pays reports whether encoding the next message is worth its time; nil: it
	// is. It is for the goroutine that calls Encode. A Sender asks it of messages
	// that nobody wanted encoded by name.
	Pays func() bool
}

// Routes sends a process's requests to the servers that have their keys. It is safe
// for use by several goroutines.
type Routes interface {
	// Whole returns the timestamp that the process gave the request of which a
	// message with that timestamp is a part; false where it is none.
	Whole(part int32) (timestamp int32, ok bool)
	// Settled has what codecs keep of the process's requests go along with keys that
	// have moved ([values.Codec.Follow]), and reports whether all are where they are
	// known to be. A codec that says so before that it is about to send something of
	// its own can send it then: no key moves until that is over.
	Settled() bool
}
