package relay

import (
	"net"
)

const (
	// Pieces below this size are copied together; larger ones are written from
	// where they are.
	copyBelow = 4 << 10
	// pending bytes and pieces at which output is written without waiting for
	// the end of the input.
	flushBytes  = 1 << 20
	flushPieces = 256
	// keepScratch is the largest scratch memory kept from flush to flush.
	keepScratch = 1 << 20
)

// output collects bytes for a connection, to write them in one call.
type output struct {
	conn    net.Conn
	vec     net.Buffers // pieces in order, slices of the input's buffer or of scratch
	scratch []byte
	waiting int         // bytes in vec
	lent    bool        // vec has memory of a codec, valid until its next call
	writing net.Buffers // vec while writev consumes it
	joined  []byte
	written uint64
}

// lend adds a piece that stays the caller's and unchanged until flush.
func (o *output) lend(b []byte) {
	if len(b) == 0 {
		return
	}
	o.waiting += len(b)
	if last := len(o.vec) - 1; last >= 0 && adjacent(o.vec[last], b) {
		o.vec[last] = o.vec[last][:len(o.vec[last])+len(b)]
		return
	}
	o.vec = append(o.vec, b)
}

// adjacent reports whether b begins in memory where a ends, within one slice's
// capacity.
func adjacent(a, b []byte) bool {
	return cap(a)-len(a) >= len(b) && &a[:len(a)+1][len(a)] == &b[0]
}

// add adds a piece of which a copy is made if it is small; a large one stays
// the caller's until flush.
func (o *output) add(b []byte) {
	if len(b) >= copyBelow {
		o.lend(b)
		o.lent = true
		return
	}
	start := len(o.scratch)
	o.scratch = append(o.scratch, b...)
	o.lend(o.scratch[start:])
}

// space returns scratch memory to append to; what was appended counts once it
// is passed to taken, and is forgotten otherwise.
func (o *output) space() []byte { return o.scratch }

// taken adds what was appended to space: b is that slice, grown.
func (o *output) taken(b []byte) {
	start := len(o.scratch)
	o.scratch = b
	o.lend(b[start:])
}

// takenFrom is taken where what counts begins at start, of a slice that
// holds other bytes before.
func (o *output) takenFrom(b []byte, start int) {
	o.scratch = b
	o.lend(b[start:])
}

// regain keeps the room of what was appended to space in vain.
func (o *output) regain(b []byte) {
	if n := len(o.scratch); cap(b) > cap(o.scratch) && len(b) >= n {
		o.scratch = b[:n]
	}
}

// full reports whether it is time to write.
func (o *output) full() bool { return o.waiting >= flushBytes || len(o.vec) >= flushPieces }

// flush writes all that was added.
func (o *output) flush() (err error) {
	if o.waiting == 0 {
		return nil
	}
	switch _, bare := o.conn.(*net.TCPConn); {
	case len(o.vec) == 1:
		_, err = o.conn.Write(o.vec[0])
	case bare:
		o.writing = o.vec
		_, err = o.writing.WriteTo(o.conn)
	default:
		err = o.writeJoined()
	}
	o.written += uint64(o.waiting)
	o.reset()
	return err
}

// reset empties the output.
func (o *output) reset() {
	clear(o.vec)
	o.vec, o.scratch, o.waiting, o.lent = o.vec[:0], o.scratch[:0], 0, false
	if cap(o.scratch) > keepScratch {
		o.scratch = nil
	}
}

// recordSize is what TLS puts into one record, at most.
const recordSize = 16 << 10

// writeJoined writes to a connection that cannot take pieces at once, such as
// TLS, where each write is a record of its own.
func (o *output) writeJoined() error {
	o.joined = o.joined[:0]
	for _, b := range o.vec {
		if len(o.joined)+len(b) < recordSize {
			o.joined = append(o.joined, b...)
			continue
		}
		if err := o.writeRecord(o.joined); err != nil {
			return err
		}
		o.joined = o.joined[:0]
		if err := o.writeRecord(b); err != nil {
			return err
		}
	}
	return o.writeRecord(o.joined)
}

func (o *output) writeRecord(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := o.conn.Write(b)
	return err
}
