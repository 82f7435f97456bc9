package listeners

import (
	"sync"

	"github.com/psidecar/psidecar/proxy/handover"
)

// carried adds up what proxies say that they have carried, since they came. Its
// zero value is empty and ready.
type carried struct {
	mu    sync.Mutex // guards the rest
	known bool       // a proxy has said so
	gone  handover.Carried
	here  map[*handover.Conn]told // proxies that are there
}

// told holds the first and the last report of a proxy.
type told struct{ first, last handover.Carried }

func (t told) since() handover.Carried {
	return handover.Carried{Job: t.last.Job - min(t.last.Job, t.first.Job), Far: t.last.Far - min(t.last.Far, t.first.Far)}
}

// tells notes what a proxy has carried until now; nil: it does not say.
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

// leaves notes that a proxy is gone.
func (c *carried) leaves(conn *handover.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.here[conn].since()
	c.gone.Job, c.gone.Far = c.gone.Job+t.Job, c.gone.Far+t.Far
	delete(c.here, conn)
}

// Carried returns how many bytes the proxies took from jobs for links with a codec
// since they took the listeners, and how many they sent in their stead: up to a
// second ago, of one that was killed too. ok: a proxy has said so.
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
