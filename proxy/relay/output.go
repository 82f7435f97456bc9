package relay

import (
	"net"
)

const (
	// Pieces smaller than copyBelow are copied together; larger ones are written from where they
	// are.
	copyBelow = 4 << 10
	// The output is written when it has this many bytes or pieces, even if the input has more. The
	// kernel takes at most 1024 pieces (IOV_MAX) at once.
	flushBytes  = 1 << 20
	flushPieces = 256
	// keepScratch is the largest scratch memory that is kept after a flush, so that one large
	// message does not occupy memory for the life of the connection.
	keepScratch = 1 << 20
)

// output collects pieces of bytes for a connection, to write them in one system call. It belongs to
// the direction's goroutine.
type output struct {
	conn    net.Conn
	vec     net.Buffers // pieces in order: slices of the input's buffer, of scratch, or of a codec's memory
	scratch []byte
	waiting int         // total bytes in vec
	lent    bool        // vec refers to a codec's memory, which is valid until its next call
	writing net.Buffers // copy of vec that writev consumes
	joined  []byte      // scratch of writeJoined
}

// lend adds a piece that stays the caller's and must not change until flush. A piece that continues
// the last one in memory extends it.
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

// add adds a piece, copied if it is small. A large one stays the caller's and must not change until
// flush.
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

// space returns scratch memory to append to. What was appended counts once the result is passed to
// taken or takenFrom; it is forgotten otherwise.
func (o *output) space() []byte { return o.scratch }

// taken adds what was appended to space; b is the grown slice. Growing may have moved scratch,
// while earlier pieces still refer to the old memory, which stays valid for them.
func (o *output) taken(b []byte) {
	start := len(o.scratch)
	o.scratch = b
	o.lend(b[start:])
}

// takenFrom is taken for a slice whose content starts only at start.
func (o *output) takenFrom(b []byte, start int) {
	o.scratch = b
	o.lend(b[start:])
}

// regain keeps the capacity of a slice that was appended to in vain.
func (o *output) regain(b []byte) {
	if n := len(o.scratch); cap(b) > cap(o.scratch) && len(b) >= n {
		o.scratch = b[:n]
	}
}

// full reports whether the output should be written.
func (o *output) full() bool { return o.waiting >= flushBytes || len(o.vec) >= flushPieces }

// flush writes everything and resets the output. It blocks until the connection has taken all.
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
	o.reset()
	return err
}

// reset empties the output, and drops its references to memory of others.
func (o *output) reset() {
	clear(o.vec)
	o.vec, o.scratch, o.waiting, o.lent = o.vec[:0], o.scratch[:0], 0, false
	if cap(o.scratch) > keepScratch {
		o.scratch = nil
	}
}

// recordSize is the maximum payload of a TLS record.
const recordSize = 16 << 10

// writeJoined writes to a connection that has no vectored write, such as TLS, where each Write
// makes a record of its own: small pieces are joined up to the size of a record.
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
