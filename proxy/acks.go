package proxy

import (
	"bufio"
	"io"
	"net"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/relay"
)

// wrote notes that the process here has got n more bytes of the stream from the far end.
// Called for each write, it only sums up; the lane's writer acknowledges later. The writer is
// woken when there is something to say for the first time, and when there is enough to say it
// at once.
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

// farEnded is called when the link's stream has ended, with the number of bytes that have come
// over the link beyond those that the process had got before. It decides whether the process's
// stream has ended or the link has broken: an end that the far proxy has announced at this very
// offset is an orderly one. Where the far proxy keeps nothing, or is ending, the end counts as
// it stands.
//
// The announcement takes another connection than the stream, so it may come a moment later:
// farEnded blocks for endWithin at most.
func (l *keptLink) farEnded(came int) error {
	n, at := l.lane, l.began+uint64(came)
	late := time.NewTimer(endWithin)
	defer late.Stop()
	for {
		n.mu.Lock()
		// news is taken together with the state, so that no change in between is missed.
		end, orderly, news := l.farEnd, n.orderly, n.news()
		n.mu.Unlock()
		switch {
		// The link had everything that the far process has sent.
		case end != nil && *end == at:
			return nil
		// A proxy of an earlier version does not count what it reads once it keeps nothing any
		// more, and announces less than has come.
		case end != nil && *end < at && (orderly || !l.window.Kept()):
			return nil
		// Bytes are missing: the link broke after the far proxy had announced the end.
		case end != nil:
			return relay.ErrBroken
		// Nothing could be resumed, so there is no point in telling a broken link from an
		// ended one.
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

// closed tells the other proxy that the process here has received the end of its stream. Only
// then may that proxy forget the connection.
func (l *keptLink) closed() { l.lane.tell(keep.Ack{Link: l.id, Kind: keep.AckClosed}) }

// farClosed blocks until the process at the far end has received the end of this one's
// stream. Were the link closed before, and the far proxy killed, the end would be lost with
// it.
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
			// Nobody reads the link any more, so nobody would notice that it broke. Silence
			// for so long is taken for that.
			if k.FarOver() {
				return relay.ErrBroken
			}
			late.Reset(closeWithin) // whoever reads the link will notice
		}
	}
}

// tell queues an acknowledgement and wakes the writer. It does not block.
func (n *lane) tell(a keep.Ack) {
	n.mu.Lock()
	n.say = append(n.say, a)
	n.mu.Unlock()
	n.wakeWriter()
}

// wakeWriter wakes the writer; a wake-up that is pending already suffices.
func (n *lane) wakeWriter() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// writeAcks writes what is due until the lane ends or a write fails. Little waits for
// ackWithin, so that one acknowledgement covers many messages; much, or the end of a stream,
// goes at once.
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
			// A pause between writes bounds the cost where many connections are busy.
			pause.Reset(ackPause)
			<-pause.C
		}
	}
}

// due appends everything that is to be written, and returns whether the lane is over.
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

// readAcks handles the acknowledgements of the other proxy until reading fails.
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

// hear applies an acknowledgement of the other proxy. Windows are called without n.mu, since
// they take locks of their own.
func (n *lane) hear(a keep.Ack) {
	n.mu.Lock()
	l := n.links[a.Link]
	switch a.Kind {
	case keep.AckStops:
		// What the other proxy hands over in order needs no window, and its kept connections
		// end with it; bytes would only pile up in the kernel's queue.
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

// news returns a channel that is closed at the next change that waiters may wait for; the
// caller holds n.mu.
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
