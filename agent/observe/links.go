package observe

import (
	"net/netip"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A Link is an open connection on which a node of this host sends to another
// node of its job.
type Link struct {
	From, To    string // names
	Worker      int    // numbers, as Sums counts them
	Server      int
	ToServer    bool
	PID         int            // of the sender
	Local, Peer netip.AddrPort // as the sender's socket has them
}

// Links returns the job's connections between workers and servers, as far as
// their senders run on this host.
func (o *Observer) Links(job string) (links []Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.streams {
		from, to := s.sender, s.receiver
		if s.closed || s.twin || from == nil || to == nil || from.process.PID == 0 || from.job.Scheduler.String() != job {
			continue
		}
		l := Link{From: from.Name(), To: to.Name(), PID: from.process.PID, Local: s.ends[0], Peer: s.ends[1]}
		switch {
		case s.id.Direction() != bpf.Egress:
			continue
		case from.role == roleWorker && to.role == roleServer:
			l.ToServer, l.Worker, l.Server = true, from.index, to.index
		case from.role == roleServer && to.role == roleWorker:
			l.Worker, l.Server = to.index, from.index
		default:
			continue
		}
		links = append(links, l)
	}
	return links
}

// barrier notes that a worker has come to a barrier, or that the scheduler lets
// it go on.
func (o *Observer) barrier(s *stream, isRequest bool, at int64) {
	o.place(s, at)
	n := s.receiver
	if isRequest {
		n = s.sender
	}
	if n != nil && n.role == roleWorker {
		n.job.Sums.Barrier(n.index, at, isRequest)
	}
}

// lastPush tells of a worker's barrier in which servers take part, which is the last
// thing that it says: PS-lite's Finalize makes one, and so does its Start. What a
// proxy carries it sees itself.
func (o *Observer) lastPush(s *stream, m *pslite.Meta, at int64) {
	direct := s.id.Direction() == bpf.Egress && s.ends[1] == s.to
	if o.opts.LastPush == nil || !direct || !m.Request || m.Control.BarrierGroup&pslite.ServerGroup == 0 {
		return
	}
	o.place(s, at)
	if n := s.sender; n != nil && n.role == roleWorker && n.id > 0 {
		o.opts.LastPush(n.job.Scheduler, n.id)
	}
}

// Senders returns which of the job's nodes have open connections on which they
// are seen to send: they run on this host.
func (o *Observer) Senders(job string) map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := map[string]bool{}
	for _, s := range o.streams {
		if s.sender != nil && !s.closed && s.id.Direction() == bpf.Egress && s.sender.job.Scheduler.String() == job {
			names[s.sender.Name()] = true
		}
	}
	return names
}
