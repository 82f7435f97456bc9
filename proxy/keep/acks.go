package keep

import "encoding/binary"

// Ack is what one proxy tells the other of one connection's link.
type Ack struct {
	Link   uint64
	Kind   byte
	Offset uint64 // in bytes of the job's stream
}

// Kinds of [Ack].
const (
	AckWrote  byte = iota // up to there the process here has got what the other's sent
	AckEnded              // what the process here sends has ended there: the link's end is in order
	AckClosed             // the process here has received the end of the other's stream
	AckStops              // the proxy is about to end; Link and Offset count for nothing
	ackKinds              // how many there are
)

// AckSize is an Ack's, in bytes.
const AckSize = 17

// Append appends the ack as it stands on the link.
func (a Ack) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, a.Link)
	dst = append(dst, a.Kind)
	return binary.BigEndian.AppendUint64(dst, a.Offset)
}

// ParseAck undoes Append, of AckSize bytes. It reports false for a kind of a later
// version's.
func ParseAck(b []byte) (a Ack, known bool) {
	a = Ack{binary.BigEndian.Uint64(b), b[8], binary.BigEndian.Uint64(b[9:])}
	return a, a.Kind < ackKinds
}
