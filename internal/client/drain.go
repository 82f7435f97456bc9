package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// AwaitDrained waits until no following proxy holds back anything of a job whose rule is to drain,
// and returns how many carry the job. Its error names the proxies that do after so long, and how
// much.
func AwaitDrained(ctx context.Context, c api.CodecsClient, job string, within time.Duration) (hosts int, err error) {
	for end := time.Now().Add(within); ; {
		d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: job})
		if err != nil {
			return 0, err
		}
		hosts, left := held(d)
		switch {
		case hosts > 0 && len(left) == 0:
			return hosts, nil
		case time.Now().After(end) && hosts == 0:
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

// held returns how many following proxies carry a job, and those that hold something back, or have
// not reported since its rule is to drain.
func held(d *api.CodecsDescription) (hosts int, left []string) {
	for _, h := range d.GetFollowers() {
		if !h.GetFollowing() {
			continue
		}
		carries := false
		for _, l := range api.MeasuresFrom(h.GetMeasures()) {
			if l.Measure != measure.Threshold {
				continue
			}
			carries = true
			switch {
			case !l.Lacks(measure.Draining):
				left = append(left, h.GetHost()+" has not reported")
			case l.HeldValues > 0:
				text := fmt.Sprintf("%s holds back %d values", h.GetHost(), l.HeldValues)
				if steps, ok := l.Steps(); ok {
					text += fmt.Sprintf(" (%.2f steps' gradient)", steps)
				}
				left = append(left, text)
			}
		}
		if carries {
			hosts++
		}
	}
	return hosts, left
}
