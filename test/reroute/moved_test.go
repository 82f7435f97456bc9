package reroute

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/sidecar"
)

// untilOver calls f every so often while a job runs, and once more when it is over. A
// job that fails is an error of the test.
func untilOver(t *testing.T, r *hosts.Running, every time.Duration, f func(over bool)) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.Wait() }()
	for over := false; !over; f(over) {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			over = true
		case <-time.After(every):
		}
	}
}

// runStates returns what all proxies say of a job's run, if it is not the one before.
func runStates(t *testing.T, all []*sidecar.Sidecar, name string, before plan.Run) (found []jobs.State) {
	t.Helper()
	for _, s := range all {
		for _, j := range states(t, s) {
			if j.Job == name && j.Run != before {
				found = append(found, j)
			}
		}
	}
	return found
}

// plain returns how many requests have passed as they were, or were split.
func plain(t *testing.T, all []*sidecar.Sidecar) (sum uint64) {
	for _, s := range all {
		for _, j := range states(t, s) {
			sum += j.Plain + j.Split
		}
	}
	return sum
}
