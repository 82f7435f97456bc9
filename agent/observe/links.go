package observe

import (
	"net/netip"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Link is an open connection on which a node of this host sends to another node of its job.
type Link struct {
	From, To    string         // names of the nodes
	PID         int            // of the sender
	Local, Peer netip.AddrPort // as the sender's socket has them
}

// Links returns the connections between nodes of a job whose senders run on this host. job is
// the scheduler's address.
func (o *Observer) Links(job string) (links []Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.streams {
		from, to := s.sender, s.receiver
		if s.closed || s.twin || from == nil || to == nil || from.process.PID == 0 || from.job.Scheduler.String() != job {
			continue
		}
		if s.id.Direction() == bpf.Egress {
			links = append(links, Link{From: from.Name(), To: to.Name(), PID: from.process.PID, Local: s.ends[0], Peer: s.ends[1]})
		}
	}
	return links
}

// barrier records that a worker has entered a barrier (its request), or that the scheduler has
// released it (the response). Time between the two is waiting for other nodes, not for servers.
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

// lastPush reports a worker's barrier that includes servers. PS-lite enters one in Start,
// before the first push, and one in Finalize, after the last, so at the end of training it is
// the last message of a worker. Messages that a proxy carries are left out, since the proxy
// sees them itself.
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

// Senders returns the names of the job's nodes that send on open connections of this host,
// which means that they run on it.
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
