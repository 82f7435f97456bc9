package plans

import (
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// Where no job is named, the one that runs is meant beside those that are over; to
// be forgotten one must be named.
func TestWhichJobIsMeant(t *testing.T) {
	s := require.Value(New(t.Context(), &store.Memory{}, Options{}))(t)
	meant := func(action api.ActRequest_Action) string {
		name, err := s.meant(&api.ActRequest{Action: action})
		if err != nil {
			return err.Error()
		}
		return name
	}
	if got := meant(api.ActRequest_RESTORE); !strings.Contains(got, "no job has a plan") {
		t.Errorf("of no job: %q", got)
	}
	over, runs := newJob(s, runKey{job: "a:1"}, 2), newJob(s, runKey{job: "b:1"}, 2)
	s.jobs["a:1"] = over
	if got := meant(api.ActRequest_RESTORE); got != "a:1" {
		t.Errorf("of one that is over: %q", got)
	}
	s.jobs["b:1"] = runs
	if got := meant(api.ActRequest_RESTORE); !strings.Contains(got, "--job: a:1, b:1") {
		t.Errorf("of two that are over: %q", got)
	}
	s.watchers[&watcher{runs: map[runKey]*api.Running{runs.key(): {Used: true}}}] = true
	if got := meant(api.ActRequest_RESTORE); got != "b:1" {
		t.Errorf("of one that runs: %q", got)
	}
	if got := meant(api.ActRequest_FORGET); !strings.Contains(got, "--job: a:1, b:1") {
		t.Errorf("to be forgotten: %q", got)
	}
}
