package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/bpf"
)

// execsPerSecond is how many processes that begin to run a program are looked
// at; of a busy host's others those that are nodes are found a little later.
const execsPerSecond = 200

// lookForProcesses scans for processes periodically, and at once when an exec is
// reported.
func (a *Agent) lookForProcesses(ctx context.Context) error {
	ticker := time.NewTicker(discoverEvery)
	defer ticker.Stop()
	beat := a.opts.Health.Add("looking for processes", standsFor)
	defer beat.End()
	for {
		beat.Beat()
		if err := a.discover(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case <-a.begun:
		}
	}
}

// openExecs begins to watch which programs begin. It is called before the first
// look at the host, so that nothing begins unseen between the two; nil where the
// kernel does not tell, and looking every now and then has to do.
func openExecs() *bpf.ExecWatch {
	w, err := bpf.OpenExecWatch()
	if err != nil {
		slog.Warn("processes are not found at once, but when the agent looks next", "every", discoverEvery, "error", err)
		return nil
	}
	return w
}

// followExecs has the nodes of jobs found when they begin.
func (a *Agent) followExecs(ctx context.Context, w *bpf.ExecWatch) error {
	if err := a.meetExecs(ctx, w); ctx.Err() == nil {
		slog.Warn("processes are not found at once any more", "error", err)
	}
	return w.Close()
}

// meetExecs starts scans for processes that look like nodes when they exec. At most
// execsPerSecond are examined a second: a host that starts processes all the time, such
// as one that compiles, must not keep the agent busy. Periodic scans find the others.
func (a *Agent) meetExecs(ctx context.Context, w *bpf.ExecWatch) error {
	second, looked := time.Now(), 0
	for {
		pid, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if time.Since(second) >= time.Second {
			second, looked = time.Now(), 0
		}
		if looked++; looked > execsPerSecond || !discover.IsNode(a.procs.proc, pid) {
			continue
		}
		a.procs.began(pid)
		select {
		case a.begun <- struct{}{}:
		default: // it is about to look
		}
	}
}
