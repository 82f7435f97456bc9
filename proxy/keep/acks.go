package keep

import "encoding/binary"

// Ack is an acknowledgement or announcement of one proxy about one connection's link.
type Ack struct {
	Link   uint64
	Kind   byte
	Offset uint64 // in bytes of the job's stream
}

// Kinds of [Ack].
const (
	AckWrote  byte = iota // the process here has received the other's stream up to Offset
	AckEnded              // the stream of the process here ends at Offset: the link's end is an orderly one
	AckClosed             // the process here has received the end of the other's stream
	AckStops              // the proxy is about to end; Link and Offset are ignored
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
