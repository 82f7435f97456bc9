package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// pollEvery is how often AwaitEpoch asks, and tellEvery how often it says that nothing has changed.
const (
	pollEvery = 200 * time.Millisecond
	tellEvery = 10 * time.Second
)

// AwaitEpoch waits until a plan of a job is carried out, for as long as ctx lasts if wait is
// negative. It writes to progress, a line at a time, what is still to move and what stands in the
// way. An error says the same of a plan that is not carried out after wait.
func AwaitEpoch(ctx context.Context, c api.PlansClient, job string, number uint64, wait time.Duration, progress io.Writer) error {
	began := time.Now()
	told, toldAt := "", time.Time{}
	for {
		e, err := epochOf(ctx, c, job, number)
		if err != nil {
			return err
		}
		took := time.Since(began)
		switch state := e.GetState(); {
		case state == api.Epoch_DONE && len(e.GetRefused()) > 0:
			return fmt.Errorf("epoch %d: not all keys have moved%s", number, Refusals(e, job, nil))
		case state == api.Epoch_DONE:
			return nil
		case state != api.Epoch_MOVING:
			return fmt.Errorf("epoch %d is %s now", number, StateName(state))
		case wait >= 0 && took >= wait:
			return fmt.Errorf("after %v epoch %d is not done: %s", wait, number, Remains(e, job))
		}
		text := Remains(e, job)
		if since := time.Since(toldAt); text != told && since >= time.Second || since >= tellEvery {
			told, toldAt = text, time.Now()
			if _, err := fmt.Fprintf(progress, "epoch %d, %v: %s\n", number, took.Round(time.Second), text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("epoch %d is not done, and the planner goes on with it: %s: %w", number, text, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
}

// epochOf asks for a plan of a job.
func epochOf(ctx context.Context, c api.PlansClient, job string, number uint64) (*api.Epoch, error) {
	d, err := c.Describe(ctx, &api.DescribeRequest{Job: job})
	if err != nil {
		return nil, err
	}
	for _, j := range d.GetJobs() {
		for _, e := range j.GetEpochs() {
			if e.GetEpoch() == number {
				return e, nil
			}
		}
	}
	return nil, fmt.Errorf("epoch %d is unknown: it belonged to an earlier run of the job", number)
}

// Remains says which keys of a plan have not moved yet, with whom they are, and why they are still
// there.
func Remains(e *api.Epoch, job string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d keys have moved", e.GetMovedKeys(), e.GetKeys())
	for _, w := range e.GetWaits() {
		server := fmt.Sprintf("server %d still has", w.GetServer())
		if parts := plan.PartsOf(w.GetServer()); parts > 0 {
			server = fmt.Sprintf("still in %d parts:", parts)
		}
		who := "no connected proxy moves them"
		if hosts := w.GetHosts(); len(hosts) > 0 {
			who = "moved by the proxy on " + strings.Join(hosts[:min(len(hosts), 3)], ", ")
		}
		fmt.Fprintf(&b, "; %s %d keys, such as %d, %s", server, w.GetKeys(), w.GetExample(), who)
	}
	return b.String() + Refusals(e, job, nil)
}

// StateName is a state of a plan in words.
func StateName(s api.Epoch_State) string {
	return strings.ReplaceAll(strings.ToLower(s.String()), "_", " ")
}

// Busiest returns what the host moves in a step whose link that takes the
// longest: before the plan, as predicted, and as measured since (0: not yet).
func Busiest(e *api.Epoch) (before, predicted, actual float64) {
	of := func(bytes func(*api.HostLoad) float64) (most float64) {
		longest := 0.0
		for _, h := range e.GetHosts() {
			if takes := bytes(h) / cmp.Or(h.GetLinkMbit(), 1); takes > longest {
				longest, most = takes, bytes(h)
			}
		}
		return most
	}
	return of((*api.HostLoad).GetBefore), of((*api.HostLoad).GetPredicted), of((*api.HostLoad).GetActual)
}

// Refusals says which keys of a plan did not move, and why; called names them.
func Refusals(e *api.Epoch, job string, called *page.NameMap) string {
	var b strings.Builder
	for _, r := range e.GetRefused() {
		example := ""
		if name := called.Key(job, r.GetExample()); name != "" {
			example = ", such as " + name
		}
		fmt.Fprintf(&b, "; %d keys refused%s (%s: %s)", r.GetKeys(), example, r.GetReason(), r.GetMessage())
	}
	return b.String()
}
