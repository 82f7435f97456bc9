package listeners

import (
	"sync"

	"github.com/psidecar/psidecar/internal/handover"
)

// carried adds up the bytes that proxies report to have carried since they connected to this
// agent. Proxies count from their own start, which may lie before the agent's; the first report
// of each is therefore its baseline. The zero value is empty and ready.
type carried struct {
	mu    sync.Mutex              // guards the rest
	known bool                    // at least one proxy has reported
	gone  handover.Carried        // sum over the proxies that have disconnected
	here  map[*handover.Conn]told // proxies that are connected
}

// told holds the first and the latest report of one proxy; both are running totals.
type told struct{ first, last handover.Carried }

// since returns the bytes between the two reports. It is zero, not a huge number, where a
// proxy's total went backwards.
func (t told) since() handover.Carried {
	return handover.Carried{Job: t.last.Job - min(t.last.Job, t.first.Job), Far: t.last.Far - min(t.last.Far, t.first.Far)}
}

// tells records the totals of a proxy's latest pong. now is nil for a proxy of a version that
// does not report them.
func (c *carried) tells(conn *handover.Conn, now *handover.Carried) {
	if now == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = true
	if c.here == nil {
		c.here = map[*handover.Conn]told{}
	}
	t, ok := c.here[conn]
	if !ok {
		t.first = *now
	}
	t.last = *now
	c.here[conn] = t
}

// leaves moves a proxy's share into the sum of those that are gone.
func (c *carried) leaves(conn *handover.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.here[conn].since()
	c.gone.Job, c.gone.Far = c.gone.Job+t.Job, c.gone.Far+t.Far
	delete(c.here, conn)
}

// Carried returns how many bytes the proxies took from jobs for links with a codec since they
// took over the listeners, and how many bytes they sent over the links instead. Reports come
// with pongs, so both lag by up to a second, and a killed proxy's last second is missing. ok is
// false while no proxy has reported.
func (l *Listeners) Carried() (job, far uint64, ok bool) {
	c := &l.carried
	c.mu.Lock()
	defer c.mu.Unlock()
	job, far = c.gone.Job, c.gone.Far
	for _, t := range c.here {
		job, far = job+t.since().Job, far+t.since().Far
	}
	return job, far, c.known
}
