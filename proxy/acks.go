package proxy

import (
	"bufio"
	"io"
	"net"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/relay"
)

// wrote notes that the process here has got more.
func (l *keptLink) wrote(n int) {
	l.written.Add(uint64(n))
	w := l.lane
	w.mu.Lock()
	first := len(w.dirty) == 0
	w.dirty[l] = true
	before := w.bytes
	w.bytes += uint64(n)
	wake := first || before < ackBytes && w.bytes >= ackBytes
	w.mu.Unlock()
	if wake {
		w.wakeWriter()
	}
}

// farEnded waits for that of the other proxy, where it is kept. left are bytes that
// were read and are still to be written.
func (l *keptLink) farEnded(left int) error {
	n := l.lane
	late := time.NewTimer(endWithin)
	defer late.Stop()
	for {
		n.mu.Lock()
		end, orderly, news := l.farEnd, n.orderly, n.news()
		n.mu.Unlock()
		switch {
		case end != nil && *end == l.written.Load()+uint64(left):
			return nil
		case end != nil:
			return relay.ErrBroken
		case orderly || !l.window.Kept():
			return nil
		}
		select {
		case <-news:
		case <-n.dead:
			return nil
		case <-late.C:
			return relay.ErrBroken
		}
	}
}

// closed tells the other proxy that the process here has received the end of its
// stream.
func (l *keptLink) closed() { l.lane.tell(keep.Ack{Link: l.id, Kind: keep.AckClosed}) }

// farClosed waits until the process at the far end has received it.
func (l *keptLink) farClosed(k *relay.Keeping) error {
	n := l.lane
	late := time.NewTimer(closeWithin)
	defer late.Stop()
	for {
		n.mu.Lock()
		told, orderly, news := l.farTold, n.orderly, n.news()
		n.mu.Unlock()
		if told || orderly || !l.window.Kept() {
			return nil
		}
		select {
		case <-news:
		case <-n.dead:
			return nil
		case <-k.Broken():
			return relay.ErrBroken
		case <-late.C:
			if k.FarOver() {
				return relay.ErrBroken
			}
			late.Reset(closeWithin) // whoever reads the link will notice
		}
	}
}

func (n *lane) tell(a keep.Ack) {
	n.mu.Lock()
	n.say = append(n.say, a)
	n.mu.Unlock()
	n.wakeWriter()
}

func (n *lane) wakeWriter() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// writeAcks sends what there is to say until the lane ends.
func (n *lane) writeAcks(conn net.Conn) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var out []byte
	for {
		<-n.wake
		// Much goes at once, and the end of a stream; little waits for more.
		n.mu.Lock()
		urgent := n.over || n.bytes >= ackBytes || len(n.say) > 0
		n.mu.Unlock()
		if !urgent {
			pause.Reset(ackWithin)
			select {
			case <-pause.C:
			case <-n.wake:
			}
		}
		var over bool
		out, over = n.due(out[:0])
		if over {
			return
		}
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return
			}
			pause.Reset(ackPause)
			<-pause.C
		}
	}
}

// due appends all that is to be said.
func (n *lane) due(out []byte) (_ []byte, over bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.dirty {
		if at := l.written.Load(); at != l.reported {
			l.reported = at
			out = keep.Ack{Link: l.id, Kind: keep.AckWrote, Offset: at}.Append(out)
		}
		delete(n.dirty, l)
	}
	for _, a := range n.say {
		out = a.Append(out)
	}
	n.say, n.bytes = n.say[:0], 0
	return out, n.over
}

// readAcks takes in what the other proxy says.
func (n *lane) readAcks(conn net.Conn) {
	in := bufio.NewReader(conn)
	var b [keep.AckSize]byte
	for {
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return
		}
		a, known := keep.ParseAck(b[:])
		if !known {
			continue
		}
		n.hear(a)
	}
}

// hear applies an acknowledgement of the other proxy. Windows are called without n.mu,
// since they take locks of their own.
func (n *lane) hear(a keep.Ack) {
	n.mu.Lock()
	l := n.links[a.Link]
	switch a.Kind {
	case keep.AckStops:
		n.orderly = true
		all := n.current()
		n.changed()
		n.mu.Unlock()
		for _, l := range all {
			l.window.Off(keep.Stopping)
		}
		return
	case keep.AckEnded:
		if l != nil {
			l.farEnd = &a.Offset
			n.changed()
		}
	case keep.AckClosed:
		if l != nil {
			l.farTold = true
			n.changed()
		}
	}
	n.mu.Unlock()
	if a.Kind == keep.AckWrote && l != nil {
		l.window.Acked(a.Offset)
	}
}

// news is closed when the end of a link is heard of; the caller holds n.mu.
func (n *lane) news() <-chan struct{} {
	if n.heard == nil {
		n.heard = make(chan struct{})
	}
	return n.heard
}

// changed wakes all waiters; the caller holds n.mu.
func (n *lane) changed() {
	if n.heard != nil {
		close(n.heard)
		n.heard = nil
	}
}
