package values

import (
	"context"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// isLast reports whether a control message says that its sender has made its last push: a
// barrier that includes servers, with BytePS one of instances. The barrier at a job's start
// is one, too, when nothing waits yet.
func isLast(m *pslite.Meta) bool {
	return (m.Control.Cmd == pslite.Barrier || m.Control.Cmd == pslite.InstanceBarrier) &&
		m.Request && m.Control.BarrierGroup&pslite.ServerGroup != 0
}

// endWorker is called when a worker may have made its last push. It sends the
// worker's residuals and blocks until the servers have answered or barrierPatience is
// over; without Options.Adds it only reports them.
func (c *Codec) endWorker(origin, node string) {
	if !c.adds {
		c.noteUnsent(origin, node)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), barrierPatience)
	defer cancel()
	if err := c.flush(ctx, origin, node); err != nil {
		c.log.Warn("residuals of a worker may be lost when it exits", "worker", node, "error", err)
	}
}

// EndPast is called when a worker of a job has announced its last push to its
// scheduler on a connection that bypasses this proxy. That message cannot be held
// back: the residuals are sent at once, and come too late if the scheduler has
// released the servers and they have ended. A worker that begins sends the same
// message, when it has no residuals.
func (c *Codec) EndPast(ctx context.Context, job string, node int32) {
	name := string(pslite.AppendIdentity(nil, node))
	for _, origin := range c.originsOf(job, name) {
		if !c.adds {
			c.noteUnsent(origin, name)
			continue
		}
		waits := 0
		for _, st := range c.streamsOf(origin, name) {
			st.mu.Lock()
			n, _ := st.residual()
			st.mu.Unlock()
			waits += n
		}
		// A worker that begins, or one that has nothing thresholded.
		if waits == 0 {
			continue
		}
		c.counts.why(ReasonUnheld)
		if err := c.flush(ctx, origin, name); err != nil {
			c.log.Warn("residuals of a worker may be lost: its last barrier bypassed this proxy, which could not hold it back. "+
				"Start the sidecars before the job, or end the threshold earlier (--threshold-until)", "worker", name, "values", waits, "error", err)
		}
	}
}

// originsOf returns the origins from which workers of that name connect and which may
// belong to that job: those of which no job is known count.
func (c *Codec) originsOf(job, node string) (origins []string) {
	seen := map[string]bool{}
	for o := range c.streamsOf("", "") {
		if o.node != node || seen[o.origin] {
			continue
		}
		seen[o.origin] = true
		// A worker of an unknown job may be this one: sending its rest early is
		// harmless.
		if of := c.jobOf(o.origin); of == job || of == "" {
			origins = append(origins, o.origin)
		}
	}
	return origins
}

// noteUnsent counts and logs the residuals of a worker that seems to end. They are
// kept, in case the worker goes on.
func (c *Codec) noteUnsent(origin, node string) {
	waits := 0
	for _, st := range c.streamsOf(origin, node) {
		st.mu.Lock()
		n, _ := st.residual()
		st.saidUnsent = n > 0
		st.mu.Unlock()
		if waits += n; n > 0 {
			c.counts.why(ReasonNotSent)
		}
	}
	if waits > 0 {
		c.log.Warn("a worker exits with residuals, which its servers will not receive. "+
			"If the servers add pushes without counting them, set --handler add; otherwise end the threshold some steps before the end of the job",
			"worker", node, "values", waits)
	}
}
