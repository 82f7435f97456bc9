package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// AwaitDrained waits until no following proxy holds back anything of a job whose rule is to drain,
// and returns how many carry the job. Its error names the proxies that do after so long, and how
// much.
func AwaitDrained(ctx context.Context, c api.CodecsClient, job string, within time.Duration) (hosts int, err error) {
	var w drainWait
	for end := time.Now().Add(within); ; {
		d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: job})
		if err != nil {
			return 0, err
		}
		left := w.look(d)
		switch {
		case len(w.carry) > 0 && len(left) == 0:
			return len(w.carry), nil
		case time.Now().After(end) && len(w.carry) == 0:
			return 0, fmt.Errorf("job %s: after %v no following proxy carries its connections: whether values are held back is not known", job, within)
		case time.Now().After(end):
			return 0, fmt.Errorf("job %s is not drained after %v: %s", job, within, strings.Join(left, "; "))
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// drainWait is a wait for a drain: all hosts that have carried the job since it began have to be
// drained. The values of a proxy that is replaced meanwhile are in files, for the next one.
type drainWait struct {
	carry map[string]bool
}

// look returns which hosts hold something back, do not follow any more, or have not reported since
// the job's rule is to drain.
func (w *drainWait) look(d *api.CodecsDescription) (left []string) {
	reports := map[string]bool{}
	for _, h := range d.GetFollowers() {
		if !h.GetFollowing() {
			continue
		}
		for _, l := range api.MeasuresFrom(h.GetMeasures()) {
			switch {
			case l.Measure != measure.Threshold:
			case l.Job == "" && l.HeldValues > 0:
				left = append(left, fmt.Sprintf("%s holds back %d values of a job of which it does not know the name", h.GetHost(), l.HeldValues))
			case l.Job == "":
			default:
				if w.carry == nil {
					w.carry = map[string]bool{}
				}
				w.carry[h.GetHost()] = true
				reports[h.GetHost()] = true
				if !l.Lacks(measure.Draining) {
					left = append(left, h.GetHost()+" has not reported")
				} else if l.HeldValues > 0 {
					left = append(left, h.GetHost()+" holds back "+amount(&l))
				}
			}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(w.carry)) {
		if !reports[host] {
			left = append(left, host+" does not report the job any more")
		}
	}
	return left
}

// amount says how much a line holds back.
func amount(l *measure.Line) string {
	text := cli.Count(int(l.HeldValues), "value", "values")
	if steps, ok := l.Steps(); ok {
		text += fmt.Sprintf(" (%.2f steps' gradient)", steps)
	}
	return text
}
