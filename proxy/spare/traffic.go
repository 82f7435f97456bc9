package spare

import (
	"io"
	"net"
	"sync/atomic"
)

// Traffic counts the bytes of links: frames with their lengths, without what TLS adds. Its methods may be called
// at any time, and those of nil count nothing.
type Traffic struct {
	sent, received atomic.Uint64
	spared         atomic.Uint64 // of values that were left out of answers
	all            *Traffic      // counts them too; nil: there is none
}

// NewTraffic returns a count of which all has the sum with others, unless all is nil.
func NewTraffic(all *Traffic) *Traffic { return &Traffic{all: all} }

// Bytes returns the bytes so far.
func (t *Traffic) Bytes() (sent, received uint64) {
	if t == nil {
		return 0, 0
	}
	return t.sent.Load(), t.received.Load()
}

// Spared returns the bytes of values that were not sent, since the client has kept them.
func (t *Traffic) Spared() uint64 {
	if t == nil {
		return 0
	}
	return t.spared.Load()
}

func (t *Traffic) addSpared(n int) {
	for ; t != nil && n > 0; t = t.all {
		t.spared.Add(uint64(n))
	}
}

func (t *Traffic) addSent(n int64) {
	for ; t != nil; t = t.all {
		t.sent.Add(uint64(n))
	}
}

func (t *Traffic) addReceived(n int) {
	for ; t != nil; t = t.all {
		t.received.Add(uint64(n))
	}
}

// reader returns a reader of a link that counts what comes.
func (t *Traffic) reader(conn net.Conn) io.Reader { return countedReader{conn, t} }

type countedReader struct {
	conn    net.Conn
	traffic *Traffic
}

// Read implements [io.Reader].
func (r countedReader) Read(b []byte) (int, error) {
	n, err := r.conn.Read(b)
	r.traffic.addReceived(n)
	return n, err
}
