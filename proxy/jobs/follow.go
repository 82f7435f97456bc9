package jobs

import (
	"net/netip"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Waits is the view of what codecs hold back of workers' pushes (residuals and the like),
// implemented by values.Codec. What is held back of a key must go to the server that owns the key
// at that time.
type Waits interface {
	// Follow redirects what is held back of a worker's pushes to keys in these ranges, or to any
	// where keys is nil, to the servers that own them; servers has the addresses of the job's
	// servers, by rank. The worker is the process with that node id at an origin.
	Follow(origin string, worker int32, servers []netip.AddrPort, keys []plan.Keys, owner func(key uint64) int32)
	// Sends reports whether something of it is in flight in a message of the codec's own, which no
	// router sees.
	Sends(origin string, worker int32) bool
	// WaitsOf reports whether something is held back of a worker's pushes to keys in these ranges.
	WaitsOf(origin string, worker int32, keys []plan.Keys) bool
	// Changes reports whether a rule may change values of a job.
	Changes(job string) bool
	// Taken counts values that were taken up from proxies before this one. A change means that
	// Follow is due again.
	Taken() uint64
}

// origin is where a worker connects from, as codecs call it. A worker may have several.
type origin struct {
	worker int32
	name   string
}

// follower is a job's [route.Follower]: what is held back of its workers' pushes moves along with
// the keys.
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

// follow redirects what is held back of all workers' pushes to the current owners of keys (nil: of
// all keys); the caller holds x.mu.
func (x *job) follow(keys []plan.Keys) {
	if x.jobs.opts.Waits == nil {
		return
	}
	if keys == nil {
		x.taken = x.jobs.opts.Waits.Taken()
	}
	// Codecs know servers by their addresses, the router by their ranks.
	servers := x.addresses()
	for o := range x.origins {
		x.jobs.opts.Waits.Follow(o.name, o.worker, servers, keys, x.router.Table().Owner)
	}
}

// followTaken does that for values taken up from a proxy before this one, which may have missed the
// latest moves; the caller holds x.mu.
func (x *job) followTaken() {
	if w := x.jobs.opts.Waits; w != nil && x.router.Ready() && w.Taken() != x.taken {
		x.follow(nil)
	}
}

// addresses returns the servers' addresses by rank, invalid ones where the table has names; the
// caller holds x.mu.
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

// maxOrigins bounds the origins that a job remembers.
const maxOrigins = 4096

// connects notes where a worker connects from. What is held back of its pushes may stem from an
// earlier proxy that did not see the latest moves, so it is redirected.
func (x *job) connects(c *requests) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.router.ForgetAsked(c.sender)
	o := origin{c.sender, c.origin}
	// Beyond the bound what is held back of a worker's pushes stays with the server for which it
	// was held back; only a job whose workers connect from ever new addresses gets there.
	if x.origins[o] || len(x.origins) >= maxOrigins {
		return
	}
	x.origins[o] = true
	if x.router.Ready() {
		x.follow(nil)
	}
}

// settledKeys reports whether no key is moving. It then makes sure that what is held back is
// addressed to the current owners.
func (x *job) settledKeys() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.router.Still() {
		return false
	}
	x.follow(nil)
	return true
}
