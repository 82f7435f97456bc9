package fleet

import (
	"bytes"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

const at1, at2 = "10.0.0.1:9091", "10.0.0.2:9091"

// says is a host's report of jobs.
func says(host string, jobs ...*api.JobReport) *api.HostReport {
	return &api.HostReport{Host: host, Jobs: jobs}
}

// saying is what a host says of a job that began then; 0: it is over there.
func saying(job, tenant, name, from, role string, since int64) *api.JobReport {
	r := &api.JobReport{Job: job, RunningSinceUnixNanos: since, FirstUnixNanos: 1}
	if name != "" {
		r.Claim = &api.Claim{Tenant: tenant, Name: name, From: from, Role: role, Authority: role == "scheduler"}
	}
	return r
}

func state(reports ...*api.HostReport) *State {
	return &State{Reports: func() []*api.HostReport { return reports }}
}

// Hosts that know a job by different names have one, that of its scheduler; a claim
// that cannot be one is none.
func TestTitlesOfHosts(t *testing.T) {
	s := state(
		says("a", saying(at1, "ns", "workers", "annotation", "worker", 5)),
		says("b", saying(at1, "ns", "train", "owner", "scheduler", 6)),
		says("c", saying(at2, "x/y", "train", "owner", "scheduler", 6)),
		says("d", saying("10.0.0.3:1", "ns", "a b", "owner", "scheduler", 6)),
	)
	for job, want := range map[string]string{at1: "ns/train", at2: at2, "10.0.0.3:1": "10.0.0.3:1", "unknown": "unknown"} {
		if got := s.Title(job); got != want {
			t.Errorf("%s is %s, want %s", job, got, want)
		}
		if got := s.Scheduler(want); got != job {
			t.Errorf("%s is at %s", want, got)
		}
	}
	names := s.JobNames(says("a", saying(at1, "", "", "", "", 1), saying(at2, "", "", "", "", 1)))
	if len(names) != 1 || names[0].GetJob() != at1 || names[0].GetName() != "ns/train" {
		t.Errorf("the host is told %v", names)
	}
}

// Two jobs on different hosts that claim one name are told apart here, and say so; a
// host that has not reported for long holds no name.
func TestTitlesAtATime(t *testing.T) {
	a, b := says("a", saying(at1, "", "ctr", "environment", "scheduler", 5)), says("b", saying(at2, "", "ctr", "environment", "scheduler", 6))
	b.Jobs[0].Remarks = []string{"it is wrong"}
	s := state(a, b)
	jobs := s.Jobs()
	of := func(name string) page.Job {
		return jobs[slices.IndexFunc(jobs, func(j page.Job) bool { return j.Name == name })]
	}
	if j := of(at1); j.Called != "ctr" || j.CalledFrom != "environment" || len(j.Remarks) > 0 {
		t.Errorf("the first is %s from %s, %q", j.Called, j.CalledFrom, j.Remarks)
	}
	if j := of(at2); j.Called != "ctr@"+at2 || len(j.Remarks) != 2 || j.Remarks[0] != "it is wrong" || !strings.Contains(j.Remarks[1], at1) {
		t.Errorf("the second is %s, %q", j.Called, j.Remarks)
	}
	if got := series(t, s); !got["ctr"] || !got["ctr@"+at2] {
		t.Errorf("there are series of %v", got)
	}
	s.Lately = func() []*api.HostReport { return []*api.HostReport{b} }
	if got := s.Title(at2); got != "ctr" {
		t.Errorf("alone it is %s", got)
	}
	if got := series(t, s); len(got) != 1 || !got["ctr"] {
		t.Errorf("then there are series of %v", got)
	}
}

// series returns the jobs of which there are metrics.
func series(t *testing.T, s *State) map[string]bool {
	t.Helper()
	w := httptest.NewRecorder()
	s.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	jobs := map[string]bool{}
	for line := range bytes.Lines(w.Body.Bytes()) {
		if _, rest, ok := strings.Cut(string(line), `{job="`); ok {
			name, _, _ := strings.Cut(rest, `"`)
			jobs[name] = true
		}
	}
	return jobs
}

// Keys move only where no host says that they should not.
func TestMove(t *testing.T) {
	moving := func(wish string) *api.JobReport { return &api.JobReport{Job: at1, Move: wish} }
	for _, c := range []struct {
		wishes []string
		want   string
	}{{[]string{"", ""}, ""}, {[]string{"true", ""}, "true"}, {[]string{"true", "false"}, "false"}, {[]string{"false", "true"}, "false"}} {
		if got := state(says("a", moving(c.wishes[0])), says("b", moving(c.wishes[1]))).Move(at1); got != c.want {
			t.Errorf("%q: %q", c.wishes, got)
		}
	}
	if got := state().Move(at1); got != "" {
		t.Errorf("of an unknown job: %q", got)
	}
	s := state(says("a", moving("true")))
	for _, forgetful := range []bool{false, true} {
		s.Forgetful = forgetful
		if said := s.Jobs()[0].Remarks; len(said) > 0 != forgetful {
			t.Errorf("of a planner without a store (%v) it is said %q", forgetful, said)
		}
	}
}
