package keep

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// ID names a connection for as long as it lasts, over all its links. Only the two
// proxies know it.
type ID [16]byte

// NewID returns a random one.
func NewID() (id ID, err error) {
	_, err = rand.Read(id[:])
	return id, err
}

// MarshalText is for JSON.
func (id ID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText undoes it.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) != 2*len(id) {
		return fmt.Errorf("a session of %d letters", len(text))
	}
	_, err := hex.Decode(id[:], text)
	return err
}

// Name stands among the codecs of a link's hello and answer for one that is none:
// the connection may be taken up again. Its data is an [Offer].
const Name = "kept"

// Kinds of offers.
const (
	Begin  byte = iota // of a new connection
	Resume             // of one that is taken up again
	Forget             // of one that cannot be taken up again: the other end need not wait for it
	Acks               // a link for acknowledgements, of all connections of two proxies
)

// Offer is what a proxy tells the other about a connection, as dialer in the hello and as
// acceptor in the answer.
type Offer struct {
	Kind     byte
	Session  ID       // but of Acks
	Position Position // of Resume: of the job-side socket
	// Message, of Resume, means that a message begins at Position.Consumed, so that codecs
	// can begin there.
	Message bool
}

// offerSize is kind, message, session, consumed and written.
const offerSize = 2 + len(ID{}) + 16

var errOffer = errors.New("malformed offer to take connections up again")

// Append appends the offer as it stands in a hello.
func (o Offer) Append(dst []byte) []byte {
	message := byte(0)
	if o.Message {
		message = 1
	}
	dst = append(dst, o.Kind, message)
	dst = append(dst, o.Session[:]...)
	dst = binary.BigEndian.AppendUint64(dst, o.Position.Consumed)
	return binary.BigEndian.AppendUint64(dst, o.Position.Written)
}

// ParseOffer undoes Append.
func ParseOffer(b []byte) (o Offer, err error) {
	if len(b) != offerSize || b[0] > Acks || b[1] > 1 {
		return o, errOffer
	}
	o.Kind, o.Message = b[0], b[1] == 1
	copy(o.Session[:], b[2:])
	o.Position.Consumed = binary.BigEndian.Uint64(b[2+len(ID{}):])
	o.Position.Written = binary.BigEndian.Uint64(b[10+len(ID{}):])
	return o, nil
}

// Taken is how a connection goes on at one end.
type Taken struct {
	// Skip is how many of the bytes that the other end is about to send the process here has
	// already got.
	Skip uint64
	// Codecs means that codecs can begin at the first byte in both directions.
	Codecs bool
}

// Take decides how a connection goes on at the end whose offer is mine; theirs is the other
// end's. Both ends call it with the same two positions, swapped, and come to consistent
// results: each skips what it already has of what the other is about to send.
//
// An error means that bytes are lost, which one process has sent and the other's kernel has
// not got: the connection cannot go on. That is the case after a splice was interrupted
// (Window.Pass).
func Take(mine, theirs Offer) (t Taken, err error) {
	switch {
	case theirs.Position.Consumed > mine.Position.Written:
		return t, fmt.Errorf("%d bytes for this host were lost", theirs.Position.Consumed-mine.Position.Written)
	case mine.Position.Consumed > theirs.Position.Written:
		return t, fmt.Errorf("%d bytes of this host were lost", mine.Position.Consumed-theirs.Position.Written)
	}
	return Taken{Skip: mine.Position.Written - theirs.Position.Consumed, Codecs: mine.Message && theirs.Message}, nil
}
