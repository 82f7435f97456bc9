package client

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api"
)

// AwaitEpoch waits until a plan of a job is carried out. An error says which of its
// keys have not moved after wait, or were refused.
func AwaitEpoch(ctx context.Context, c api.PlansClient, job string, number uint64, wait time.Duration) error {
	end := time.Now().Add(wait)
	for {
		known := false
		d, err := c.Describe(ctx, &api.DescribeRequest{Job: job})
		if err != nil {
			return err
		}
		for _, j := range d.GetJobs() {
			for _, e := range j.GetEpochs() {
				known = known || e.GetEpoch() == number
				if e.GetEpoch() != number || e.GetState() == api.Epoch_MOVING && time.Now().Before(end) {
					continue
				}
				refused := Refusals(e, job, nil)
				switch {
				case e.GetState() == api.Epoch_MOVING:
					return fmt.Errorf("after %v %d keys of epoch %d are still to move%s", wait, e.GetPendingKeys(), number, refused)
				case e.GetState() != api.Epoch_DONE:
					return fmt.Errorf("epoch %d is %s now", number, StateName(e.GetState()))
				case refused != "":
					return fmt.Errorf("epoch %d: not all keys have moved%s", number, refused)
				}
				return nil
			}
		}
		if !known {
			return fmt.Errorf("epoch %d is unknown: it belonged to an earlier run of the job", number)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
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
