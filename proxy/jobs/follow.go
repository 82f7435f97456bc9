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
	// WaitsOf reports whether something waits of a worker's pushes of keys in these
	// ranges.
	WaitsOf(origin string, worker int32, keys []plan.Keys) bool
	// Changes reports whether a rule may change values of a job.
	Changes(job string) bool
	// Taken counts the waiting values that were taken up from proxies before this
	// one.
	Taken() uint64
}

// origin is where a worker connects from: more than one address, perhaps.
type origin struct {
	worker int32
	name   string
}

// follower has what waits of the pushes of a job's workers go along with keys.
type follower struct{ x *job }

// Follow implements [route.Follower]; the caller holds x.mu.
func (f follower) Follow(keys []plan.Keys) { f.x.follow(keys) }

// Busy implements [route.Follower]; the caller holds x.mu.
func (f follower) Busy() bool {
	if f.x.jobs.opts.Waits == nil {
		return false
	}
	for o := range f.x.origins {
		if f.x.jobs.opts.Waits.Sends(o.name, o.worker) {
			return true
		}
	}
	return false
}

// Waits implements [route.Follower]; the caller holds x.mu.
func (f follower) Waits(keys []plan.Keys) bool {
	if f.x.jobs.opts.Waits == nil {
		return false
	}
	for o := range f.x.origins {
		if f.x.jobs.opts.Waits.WaitsOf(o.name, o.worker, keys) {
			return true
		}
	}
	return false
}

// follow has the waiting values of all workers go along with their keys (nil: all
// keys); the caller holds x.mu.
func (x *job) follow(keys []plan.Keys) {
	if x.jobs.opts.Waits == nil {
		return
	}
	if keys == nil {
		x.taken = x.jobs.opts.Waits.Taken()
	}
	servers := x.addresses()
	for o := range x.origins {
		x.jobs.opts.Waits.Follow(o.name, o.worker, servers, keys, x.router.Table().Owner)
	}
}

// followTaken does so for values taken up from a proxy before this one, which may
// not have known of the latest moves; the caller holds x.mu.
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

// maxOrigins bounds the origins of a job's workers.
const maxOrigins = 4096

// connects notes where a worker connects from. What waits of its pushes may be of
// a process before this one, that did not see keys move.
func (x *job) connects(c *requests) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := origin{c.sender, c.origin}
	if x.origins[o] || len(x.origins) >= maxOrigins {
		return
	}
	x.origins[o] = true
	if x.router.Ready() {
		x.follow(nil)
	}
}

// settledKeys reports whether what waits of workers' pushes is for the servers that own
// the keys, and none of these is on its way to another.
func (x *job) settledKeys() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.router.Still() {
		return false
	}
	x.follow(nil)
	return true
}
