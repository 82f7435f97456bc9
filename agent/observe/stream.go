package observe

import (
	"net/netip"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// A stream is one direction of a connection.
type stream struct {
	id       bpf.StreamID
	from, to netip.AddrPort // of what flows here
	late     bool
	synced   bool
	closed   bool
	twin     bool // seen as egress of another watched process too: not counted
	missed   uint64
	identity int32 // of the sender, from its READY; 0 unknown
	detector pslite.Detector

	sender, receiver *Node
	tried            int64 // when the ends were last looked for in vain
	asked            int   // how often its sender's process was asked for since

	message message
	metaBuf []byte // pieces of a meta frame in progress
	keys    []byte // of the message in progress, as on the wire
	lens    []byte
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
	s := &stream{id: r.Stream, from: local, to: peer, late: r.Has(bpf.Late), synced: !r.Has(bpf.Late)}
	if r.Stream.Direction() == bpf.Ingress {
		s.from, s.to = peer, local
	} else {
		o.sending[[2]netip.AddrPort{s.from, s.to}] = s.id
	}
	o.streams[s.id] = s
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
	if s.message.open {
		o.misses.Incomplete++
	}
	o.release(s)
	s.message = message{}
	s.metaBuf = s.metaBuf[:0]
}

// release frees the keys and lens of the message in progress.
func (o *Observer) release(s *stream) {
	o.held -= len(s.keys) + len(s.lens)
	o.putBack(s.keys)
	o.putBack(s.lens)
	s.keys, s.lens = nil, nil
}

// spareBuffers is how many buffers for keys are kept for the next messages.
const spareBuffers = 16

func (o *Observer) putBack(b []byte) {
	if cap(b) > 0 && len(o.spare) < spareBuffers {
		o.spare = append(o.spare, b[:0])
	}
}

// hold adds a piece to a buffer of the message in progress.
func (o *Observer) hold(b, piece []byte) []byte {
	if b == nil && len(o.spare) > 0 {
		b = o.spare[len(o.spare)-1]
		o.spare = o.spare[:len(o.spare)-1]
	}
	o.held += len(piece)
	return append(b, piece...)
}
