package life

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// order is something that an operator asks of the planner for a slot's job. It may be refused:
// there may be no such job, nothing to do, or no planner. What counts is what it does to jobs.
type order struct {
	slot  int
	args  []string
	lossy int // 1: from now on values may be left out; -1: not any more
}

func (e order) kind() string { return strings.Join(e.args[:min(len(e.args), 2+e.lossy*e.lossy)], " ") }
func (e order) String() string {
	return fmt.Sprintf("slot %d: psidecar %s", e.slot, strings.Join(e.args, " "))
}

// possible requires a job, whose name the command needs.
func (e order) possible(l *Life) error {
	if !l.isBusy(e.slot) {
		return fmt.Errorf("slot %d has no job", e.slot)
	}
	return nil
}

// happen runs the command and notes its output. Its error is no failure.
func (e order) happen(ctx context.Context, l *Life) error {
	// Before the command: rules may hold although it fails, while rules that were to be removed
	// stay until it succeeds.
	if e.lossy > 0 {
		l.setLossy(e.slot, true)
	}
	text, err := l.psidecar(ctx, append(e.args[:len(e.args):len(e.args)], "--job", l.jobName(e.slot))...)
	if err == nil && e.lossy < 0 {
		l.setLossy(e.slot, false)
	}
	l.journal.say("  %v %s", err, strings.ReplaceAll(strings.TrimSpace(text), "\n", " | "))
	return nil
}

// psidecar runs a command that asks the planner, on the planner's host, and returns the
// beginning of its output.
func (l *Life) psidecar(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	h := l.fleet.planner.Host
	cmd := exec.Command(l.fleet.programs.psidecar, append(args, "--planner", h.Address(plannerAPI))...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.Run(ctx, cmd)
	return fmt.Sprintf("%.400s", out.String()), err
}
