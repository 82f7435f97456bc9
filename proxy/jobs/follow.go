package jobs

import (
	"net/netip"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// Waits is what waits of workers' pushes to be sent: values.Codec.
type Waits interface {
	// Follow has what waits of a worker's pushes of keys in these ranges, or of any
	// where keys is nil, be for the servers that own them; servers are the job's, by
	// rank. It is for the process with that node id at an origin.
	Follow(origin string, worker int32, servers []netip.AddrPort, keys []plan.Keys, owner func(key uint64) int32)
	// Sends reports whether something of it is on its way by itself, which no router
	// sees.
	Sends(origin string, worker int32) bool
	// Taken counts what was taken up from proxies before this one.
	Taken() uint64
}

// follower has what waits of the pushes of a job's workers go along with keys.
type follower struct{ x *job }

// Follow implements [route.Follower]; x.mu is locked.
func (f follower) Follow(keys []plan.Keys) { f.x.follow(keys) }

// Busy implements [route.Follower]; x.mu is locked.
func (f follower) Busy() bool {
	if f.x.jobs.opts.Waits == nil {
		return false
	}
	for worker, origin := range f.x.origins {
		if f.x.jobs.opts.Waits.Sends(origin, worker) {
			return true
		}
	}
	return false
}

// follow has what waits of all workers go along with keys; x.mu is locked.
func (x *job) follow(keys []plan.Keys) {
	if x.jobs.opts.Waits == nil {
		return
	}
	if keys == nil {
		x.taken = x.jobs.opts.Waits.Taken()
	}
	servers := x.addresses()
	for worker, origin := range x.origins {
		x.jobs.opts.Waits.Follow(origin, worker, servers, keys, x.router.Table().Owner)
	}
}

// followTaken does so for what was taken up from a proxy before this one, which did
// not know perhaps what has moved since; x.mu is locked.
func (x *job) followTaken() {
	if w := x.jobs.opts.Waits; w != nil && x.router.Ready() && w.Taken() != x.taken {
		x.follow(nil)
	}
}

// addresses are those of the servers, by rank; invalid where they are names.
func (x *job) addresses() []netip.AddrPort {
	all := make([]netip.AddrPort, x.servers)
	for _, n := range x.nodes.Nodes() {
		ip, err := netip.ParseAddr(n.Hostname)
		if role, rank, ok := pslite.Rank(n.ID); ok && err == nil && role == pslite.Server && rank < len(all) {
			all[rank] = netip.AddrPortFrom(ip.Unmap(), uint16(n.Port))
		}
	}
	return all
}

// connects notes where a worker connects from. What waits of its pushes may be of
// a process before this one, that did not see keys move.
func (x *job) connects(c *requests) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.origins[c.sender] == c.origin {
		return
	}
	x.origins[c.sender] = c.origin
	if x.router.Ready() {
		x.follow(nil)
	}
}

// settledFor reports whether what waits of a worker's pushes is for the servers
// that own the keys, and none of these is on its way to another.
func (x *job) settledFor(worker int32) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.router.Still() {
		return false
	}
	if w := x.jobs.opts.Waits; w != nil {
		w.Follow(x.origins[worker], worker, x.addresses(), nil, x.router.Table().Owner)
	}
	return true
}
