package observe

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// A stream is one direction of a connection.
type stream struct {
	id       bpf.StreamID
	from, to netip.AddrPort // of what flows here
	// ends are from and to as the processes' sockets have them: others where
	// the connection was redirected to a proxy.
	ends     [2]netip.AddrPort
	late     bool
	synced   bool
	closed   bool
	twin     bool // seen as egress of another watched process too: not counted
	timing   bool // received: its answers are matched with requests, nothing more
	missed   uint64
	identity int32 // of the sender, from its READY; 0 unknown
	detector pslite.Detector

	sender, receiver *Node
	tried            int64 // when the ends were last looked for
	tries            int   // how often
	asked            int   // how often its sender's process was asked for since

	message message
	metaBuf []byte   // pieces of a meta frame in progress
	keys    []uint64 // of the message in progress
	rising  bool     // they ascend strictly
	tail    []byte   // the piece of a key that the next record goes on with
	lens    []byte   // of the message in progress, as on the wire
}

func (o *Observer) open(r *bpf.Record) {
	local, peer := r.Endpoints()
	if s := o.streams[r.Stream]; s != nil { // reported again: synchronised anew
		s.synced = !r.Has(bpf.Late)
		return
	}
	if len(o.streams) >= maxStreams {
		o.dropClosed()
	}
	if len(o.streams) >= maxStreams {
		o.misses.Refused++
		return
	}
	to, follow := o.route(r.Stream, local, peer)
	if !follow {
		return
	}
	s := &stream{id: r.Stream, from: local, to: to, late: r.Has(bpf.Late), synced: !r.Has(bpf.Late)}
	s.ends = [2]netip.AddrPort{local, peer}
	if r.Stream.Direction() == bpf.Ingress {
		s.from, s.to, s.timing = to, local, o.opts.IngressTimes
		s.ends = [2]netip.AddrPort{peer, local}
	} else {
		o.sending[[2]netip.AddrPort{s.from, s.to}] = s.id
	}
	o.streams[s.id] = s
}

func (o *Observer) route(id bpf.StreamID, local, peer netip.AddrPort) (to netip.AddrPort, follow bool) {
	if o.opts.Route == nil {
		return peer, true
	}
	return o.opts.Route(id.Cookie(), local, peer)
}

// leavesHost reports whether what flows here goes to another host, by way of a
// proxy or not.
func (s *stream) leavesHost() bool {
	from := s.from.Addr()
	if s.ends[1] != s.to && s.sender != nil {
		from = s.sender.address.Addr()
	}
	return from != s.to.Addr() && !s.to.Addr().IsLoopback()
}

func (o *Observer) dropClosed() {
	for id, s := range o.streams {
		if s.closed {
			o.forget(s)
			delete(o.streams, id)
		}
	}
}

func (o *Observer) forget(s *stream) {
	o.giveUp(s)
	ends := [2]netip.AddrPort{s.from, s.to}
	if o.sending[ends] == s.id {
		delete(o.sending, ends)
	}
}

// close ends a stream. A closed one stays for a while, since repeated segments
// may follow.
func (o *Observer) close(s *stream, r *bpf.Record) {
	s.closed = true
	if r.Kind == bpf.KindForeign {
		o.forget(s)
		delete(o.streams, s.id)
	}
}

// Drop forgets a stream that the kernel has forgotten.
func (o *Observer) Drop(id bpf.StreamID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.forget(s)
		delete(o.streams, id)
	}
}

// command takes a ZMTP command: READY has the identity, ps and the node's id.
func (s *stream) command(body []byte) {
	name, data, err := zmtp.ParseCommand(body)
	if err != nil || string(name) != "READY" {
		return
	}
	ready, err := zmtp.ParseReady(data)
	if err != nil {
		return
	}
	if id, ok := pslite.ParseIdentity(ready.Identity); ok {
		s.identity = id
	}
}

// giveUp forgets the message in progress, part of which was lost.
func (o *Observer) giveUp(s *stream) {
	if s.message.open && !s.timing {
		o.misses.Incomplete++
	}
	o.release(s)
	s.message = message{}
	s.metaBuf = s.metaBuf[:0]
}

// release frees the keys and lens of the message in progress.
func (o *Observer) release(s *stream) {
	o.held -= 8*len(s.keys) + len(s.lens)
	if cap(s.keys) > 0 && len(o.spare) < spareBuffers {
		o.spare = append(o.spare, s.keys[:0])
	}
	s.keys, s.tail, s.lens = nil, s.tail[:0], nil
}

// spareBuffers is how many buffers for keys are kept for the next messages.
const spareBuffers = 16

// hold adds a piece of the key frame to the message in progress. Keys may be
// cut in two between pieces.
func (o *Observer) hold(s *stream, piece []byte) {
	if s.keys == nil {
		s.rising = true
		if len(o.spare) > 0 {
			s.keys = o.spare[len(o.spare)-1]
			o.spare = o.spare[:len(o.spare)-1]
		}
	}
	before := len(s.keys)
	if len(s.tail) > 0 {
		n := min(8-len(s.tail), len(piece))
		s.tail = append(s.tail, piece[:n]...)
		if piece = piece[n:]; len(s.tail) < 8 {
			return
		}
		s.addKeys(s.tail)
		s.tail = s.tail[:0]
	}
	whole := len(piece) &^ 7
	s.addKeys(piece[:whole])
	s.tail = append(s.tail, piece[whole:]...)
	o.held += 8 * (len(s.keys) - before)
}

// addKeys adds whole keys, and looks whether they ascend.
func (s *stream) addKeys(b []byte) {
	at := len(s.keys)
	s.keys = slices.Grow(s.keys, len(b)/8)[:at+len(b)/8]
	to := s.keys[at:]
	for i := range to {
		to[i] = binary.LittleEndian.Uint64(b[8*i : 8*i+8])
	}
	for i := max(at, 1); i < len(s.keys); i++ {
		if s.keys[i] <= s.keys[i-1] {
			s.rising = false
			return
		}
	}
}
