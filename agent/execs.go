package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/bpf"
)

// execsPerSecond bounds the processes that are examined at exec. On a host that starts more,
// nodes among the rest are found by the next scan.
const execsPerSecond = 200

// lookForProcesses scans for processes every discoverEvery, and at once when an exec is
// reported, until ctx ends.
func (a *Agent) lookForProcesses(ctx context.Context) error {
	beat := a.opts.Health.Add("scanning processes", standsFor)
	defer beat.End()
	p := pace{least: discoverEvery, share: 0.15}
	for {
		beat.Beat()
		var err error
		pause := a.paced(&p, func() { err = a.discover() })
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		case <-a.begun:
		}
	}
}

// openExecs starts watching execs. It is called before the first scan, so that no process falls
// between the two. It returns nil where the kernel does not report execs; the periodic scan
// must then suffice.
func openExecs() *bpf.ExecWatch {
	w, err := bpf.OpenExecWatch()
	if err != nil {
		slog.Warn("cannot watch process starts; new processes are found at the next scan", "every", discoverEvery, "error", err)
		return nil
	}
	return w
}

// followExecs runs meetExecs until ctx ends and closes the watch. A failure is logged and does
// not end the agent.
func (a *Agent) followExecs(ctx context.Context, w *bpf.ExecWatch) error {
	if err := a.meetExecs(ctx, w); ctx.Err() == nil {
		slog.Warn("no longer watching process starts; new processes are found at the next scan", "error", err)
	}
	return w.Close()
}

// meetExecs triggers a scan for each process that looks like a node when it execs. At most
// execsPerSecond are examined: a host that starts processes all the time, such as one that
// compiles, must not keep the agent busy.
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
		// IsNode reads the process's environment, so this is what the bound is for.
		if looked++; looked > execsPerSecond || !discover.IsNode(a.procs.proc, pid) {
			continue
		}
		// Before the scan is triggered: the process may be remembered as what it was before the
		// exec.
		a.procs.began(pid)
		select {
		case a.begun <- struct{}{}:
		default: // a scan is pending already
		}
	}
}
