package jobs

import (
	"sync/atomic"

	"github.com/psidecar/psidecar/proxy/migrate"
)

// adding is what the gatherer of pushes has to know of the servers' handler (see package
// aggregate), without job.mu: it asks for each push.
type adding struct {
	known atomic.Bool // pushes are added
	asked atomic.Bool // pushes wait for that to be known
}

// Adds reports whether it is known that the servers of the connection's job add pushes. Where it is
// unknown and may be tested (Options.Probe), it is.
func (c *requests) Adds() bool {
	x := c.routes.Load()
	if x == nil {
		return false
	}
	if !x.adding.known.Load() {
		x.adding.asked.Store(true)
		return false
	}
	return true
}

// setHandler sets what the servers do with pushes; the caller holds x.mu.
func (x *job) setHandler(h migrate.Handler) {
	x.handler = h
	x.adding.known.Store(h == migrate.Adds)
}

// settleAdding tests the handler, where pushes wait for it; the caller holds x.mu.
func (x *job) settleAdding() {
	if x.adding.asked.Load() && x.handler == migrate.Unknown && x.connected() && x.router.Ready() {
		x.settleHandler(nil)
	}
}
