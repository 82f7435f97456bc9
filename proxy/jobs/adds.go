package jobs

import (
	"sync/atomic"

	"github.com/psidecar/psidecar/proxy/migrate"
)

// adding is what the gatherer of pushes (see package aggregate) and codecs have to know of the
// servers' handler, without job.mu: they ask for each push.
type adding struct {
	known   atomic.Bool // pushes are added
	assigns atomic.Bool // pushes are assigned
	asked   atomic.Bool // pushes wait for it to be known whether they are added
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
	x.adding.assigns.Store(h == migrate.Assigns)
}

// settleAdding tests the handler, where pushes wait for it; the caller holds x.mu.
func (x *job) settleAdding() {
	if x.adding.asked.Load() && x.handler == migrate.Unknown && x.connected() && x.router.Ready() {
		x.settleHandler()
	}
}
