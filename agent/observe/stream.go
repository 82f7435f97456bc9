package observe

import (
	"errors"
	"net/netip"

	"github.com/psidecar/psidecar/agent/counts"
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
	spoke    bool  // a message passed
	foreign  bool  // counted in its job's unread
	skipped  bool  // unreadable messages, answers perhaps, have passed since the last one that was read
	identity int32 // of the sender, from its READY; 0 unknown
	detector pslite.Detector

	sender, receiver *Node
	tried            int64 // when the ends were last looked for
	tries            int   // how often
	asked            int   // how often its sender's process was asked for since

	message message
	metaBuf []byte // pieces of a meta frame in progress
	list    list   // keys of the message in progress
	lens    []byte // of the message in progress, as on the wire
}

// openStream takes in a connection that the kernel reports. Beyond maxStreams it is
// refused and counted.
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

func (o *Observer) route(id bpf.StreamID, local, peer netip.AddrPort) (to netip.AddrPort, follow bool) {
	if o.opts.Route == nil {
		return peer, true
	}
	return o.opts.Route(id.Cookie(), local, peer)
}

// job returns the job that the stream belongs to, nil while it is not known.
func (s *stream) job() *Job {
	switch {
	case s.receiver != nil:
		return s.receiver.job
	case s.sender != nil:
		return s.sender.job
	}
	return nil
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
			o.closeStream(s)
			delete(o.streams, id)
		}
	}
}

func (o *Observer) closeStream(s *stream) {
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
		s.unread(pslite.NoFork)
		o.closeStream(s)
		delete(o.streams, s.id)
	}
}

// ofFork notes that a message is of a fork that is not read, and reports whether it is.
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

// Drop forgets a stream that the kernel has forgotten.
func (o *Observer) Drop(id bpf.StreamID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		o.closeStream(s)
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
	o.freeMessage(s)
	s.message = message{}
	s.metaBuf = s.metaBuf[:0]
}

// freeMessage frees the keys and lens of the message in progress.
func (o *Observer) freeMessage(s *stream) {
	o.held -= s.list.memory() + len(s.lens)
	if cap(s.list.keys) > 0 && len(o.spare) < spareBuffers {
		o.spare = append(o.spare, s.list)
	}
	s.list, s.lens = list{}, nil
}

// spareBuffers is how many buffers for keys are kept for the next messages.
const spareBuffers = 16

// hold adds a piece of the key frame to the message in progress: bytes of keys,
// or a run of them.
func (o *Observer) hold(s *stream, r *bpf.Record) {
	// A list may have begun without a spare buffer: then it has pieces, or the
	// first bytes of a key, which must stay.
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
