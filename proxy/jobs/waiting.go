package jobs

import (
	"net/netip"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// waiter is a connection whose sender is known and whose job is not. Nodes connect as soon as they
// have the node table, which may be before the node that they connect to has it. The router may
// have messages for such a connection although its process is silent, so it joins when the job is
// learned.
type waiter interface {
	// join makes the connection, to the node peer, one of the job's. It may block for the
	// verification of its sender.
	join(x *job, peer int32)
	// of returns the scope of the process of this host at its end.
	of() Scope
	open() bool
}

// findJob returns the job of a scope and its node that listens at an address. If there is none yet
// and w is not nil, w joins once there is.
func (j *Jobs) findJob(addr netip.AddrPort, s Scope, w waiter) (*job, int32) {
	j.mu.RLock()
	x, id := j.at(addr, s)
	j.mu.RUnlock()
	if x != nil || w == nil {
		return x, id
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	// Looked up again: the job may have been learned between the two locks, and would not find this
	// waiter.
	// A connection that was closed meanwhile has left already: it would wait forever.
	if x, id = j.at(addr, s); x == nil && w.open() {
		j.waiting[w] = addr
	}
	return x, id
}

// at is findJob without waiting; the caller holds j.mu.
func (j *Jobs) at(addr netip.AddrPort, s Scope) (*job, int32) {
	for _, x := range j.jobs {
		if !x.hasScope(s) {
			continue
		}
		if id, ok := x.nodes.At(addr); ok {
			return x, id
		}
	}
	return nil, pslite.Empty
}

// joinWaiting joins the connections that have waited for the job.
func (j *Jobs) joinWaiting(x *job) {
	found := map[waiter]int32{}
	j.mu.Lock()
	for w, addr := range j.waiting {
		if id, ok := x.nodes.At(addr); ok && x.hasScope(w.of()) {
			found[w] = id
			delete(j.waiting, w)
		}
	}
	j.mu.Unlock()
	// Without j.mu: join takes job.mu and may ask the network. A connection that is closed
	// meanwhile is refused by join itself.
	for w, id := range found {
		w.join(x, id)
	}
}

// left is called when a connection has been closed.
func (j *Jobs) left(w waiter) {
	j.mu.Lock()
	delete(j.waiting, w)
	j.mu.Unlock()
	for _, x := range j.allJobs() {
		x.removeConnection(w)
	}
}
