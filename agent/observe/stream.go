package observe

import (
	"errors"
	"net/netip"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// A stream is one direction of a TCP connection. It is guarded by the observer's lock.
type stream struct {
	id       bpf.StreamID
	from, to netip.AddrPort // sender's and receiver's address, as if there were no proxy
	// ends are from and to as the sockets have them. They differ if the connection was
	// redirected to a proxy.
	ends   [2]netip.AddrPort
	late   bool   // its beginning was missed
	synced bool   // the kernel follows its frames
	closed bool   // its end was seen
	twin   bool   // its messages are also captured where they are sent: not counted
	timing bool   // received: its answers end the wait of requests, nothing else is counted
	missed uint64 // bytes that passed before the kernel was in sync
	rested uint64 // bytes that passed in rests, as far as they are counted
	// It is watched for one part in restOf of the time, in restOfBefore until Observer.restFrom; 0
	// and 1: always.
	restOf, restOfBefore uint32
	spoke                bool  // a message has passed
	foreign              bool  // counted in Job.unread
	skipped              bool  // messages, perhaps answers, have passed unread since the last one that was read
	identity             int32 // node id of the sender, from its READY command; 0: unknown
	detector             pslite.Detector

	sender, receiver *Node
	tried            int64 // time of the last question to the Resolver
	tries            int   // number of such questions
	asked            int   // likewise for Reconcile

	message message
	metaBuf []byte // pieces of the meta frame in progress
	list    list   // keys of the message in progress
	lens    []byte // lens of the message in progress, as on the wire
}

// openStream adds a stream for a connection that the kernel reports. At maxStreams, closed
// streams are dropped; if that does not help the connection is refused and counted. A stream
// that was reported before starts a new synchronization.
func (o *Observer) openStream(r *bpf.Record) {
	local, peer := r.Endpoints()
	if s := o.streams[r.Stream]; s != nil { // reported again: synchronised afresh
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
	s := &stream{id: r.Stream, from: local, to: to, late: r.Has(bpf.Late), synced: !r.Has(bpf.Late), skipped: r.Has(bpf.Late)}
	s.ends = [2]netip.AddrPort{local, peer}
	if r.Stream.Direction() == bpf.Ingress {
		s.from, s.to, s.timing = to, local, o.opts.IngressTimes
		s.ends = [2]netip.AddrPort{peer, local}
	} else {
		o.sending[[2]netip.AddrPort{s.from, s.to}] = s.id
	}
	o.streams[s.id] = s
}

// route applies Options.Route.
func (o *Observer) route(id bpf.StreamID, local, peer netip.AddrPort) (to netip.AddrPort, follow bool) {
	if o.opts.Route == nil {
		return peer, true
	}
	return o.opts.Route(id.Cookie(), local, peer)
}

// job returns the job of the stream, nil while neither end is placed.
func (s *stream) job() *Job {
	switch {
	case s.receiver != nil:
		return s.receiver.job
	case s.sender != nil:
		return s.sender.job
	}
	return nil
}

// leavesHost reports whether the stream's bytes go to another host, directly or by way of a
// proxy. A redirected connection has a loopback source address, so the sender's own is
// compared.
func (s *stream) leavesHost() bool {
	from := s.from.Addr()
	if s.ends[1] != s.to && s.sender != nil {
		from = s.sender.address.Addr()
	}
	return from != s.to.Addr() && !s.to.Addr().IsLoopback()
}

// dropClosed forgets all closed streams.
func (o *Observer) dropClosed() {
	for id, s := range o.streams {
		if s.closed {
			o.closeStream(s)
			delete(o.streams, id)
		}
	}
}

// closeStream releases what a stream holds outside itself. The caller deletes it from
// o.streams.
func (o *Observer) closeStream(s *stream) {
	o.giveUp(s)
	ends := [2]netip.AddrPort{s.from, s.to}
	if o.sending[ends] == s.id {
		delete(o.sending, ends)
	}
}

// close ends a stream. A closed stream stays until room is needed or the kernel forgets it,
// because retransmitted segments may follow. A foreign one, whose bytes are not ZMTP or
// PS-lite, is dropped at once.
func (o *Observer) close(s *stream, r *bpf.Record) {
	s.closed = true
	o.rested(s, r)
	if r.Kind == bpf.KindForeign {
		s.unread(pslite.NoFork)
		o.closeStream(s)
		delete(o.streams, s.id)
	}
}

// ofFork reports whether a meta failed to parse because it is of a known PS-lite fork whose
// messages are not read, and records that.
func (s *stream) ofFork(err error) bool {
	var fork *pslite.ForkError
	if !errors.As(err, &fork) || fork.Fork == pslite.NoFork || s.job() == nil {
		return false
	}
	s.unread(fork.Fork)
	return true
}

// unread counts the stream, once, among those of its job with unreadable messages.
func (s *stream) unread(fork pslite.Fork) {
	j := s.job()
	if j == nil {
		return
	}
	if fork != pslite.NoFork {
		j.fork = fork
	}
	if !s.foreign {
		s.foreign = true
		j.unread++
	}
}

// Drop forgets a stream that the kernel no longer follows.
func (o *Observer) Drop(id bpf.StreamID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.closeStream(s)
		delete(o.streams, id)
	}
}

// command reads a ZMTP command. READY carries the socket's identity, which PS-lite sets to "ps"
// and the node id.
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

// giveUp abandons the message in progress, part of which was lost, and counts it.
func (o *Observer) giveUp(s *stream) {
	if s.message.open && !s.timing {
		o.misses.Incomplete++
	}
	o.freeMessage(s)
	s.message = message{}
	s.metaBuf = s.metaBuf[:0]
}

// freeMessage releases the keys and lens of the message in progress, keeping the key buffer for
// another message.
func (o *Observer) freeMessage(s *stream) {
	o.held -= s.list.memory() + len(s.lens)
	if cap(s.list.keys) > 0 && len(o.spare) < spareBuffers {
		o.spare = append(o.spare, s.list)
	}
	s.list, s.lens = list{}, nil
}

// spareBuffers is how many key buffers are kept.
const spareBuffers = 16

// hold adds a record of the key frame, bytes or a run, to the message in progress.
func (o *Observer) hold(s *stream, r *bpf.Record) {
	// A list that began without a spare buffer must be kept: it has pieces, or the first bytes
	// of a key.
	if s.list.pieces == nil && s.list.have == 0 && len(o.spare) > 0 {
		s.list = o.spare[len(o.spare)-1]
		s.list.reset()
		o.spare = o.spare[:len(o.spare)-1]
	}
	before := s.list.memory()
	if r.Kind == bpf.KindKeyRun {
		first, step, n := r.KeyRun()
		// Lens and Options.Uses need the keys one by one.
		oneByOne := s.message.withLens || o.opts.Uses != nil
		s.list.addRun(counts.Run{First: first, Step: step, N: int(n)}, oneByOne)
	} else {
		s.list.addBytes(r.Data)
	}
	o.held += s.list.memory() - before
}
