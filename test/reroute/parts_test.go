package reroute

import (
	"context"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/jobtest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// inParts returns how many keys are in parts by what each proxy knows, the fewest and the
// most, and why they are not.
func inParts(t *testing.T, all []*sidecar.Sidecar, name string) (fewest, most int, not []jobs.PartsGap) {
	t.Helper()
	fewest = -1
	for _, s := range all {
		keys := 0
		for _, j := range states(t, s) {
			if j.Job == name && j.InParts != nil {
				keys = j.InParts.Keys
				not = append(not, j.InParts.Not)
			}
		}
		if most = max(most, keys); fewest < 0 || keys < fewest {
			fewest = keys
		}
	}
	return fewest, most, not
}

// until waits until something is so while a job runs, which has not ended by then.
func until(t *testing.T, done <-chan error, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-done:
			t.Fatalf("the job ended before %s: %v", what, err)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("in two minutes it did not come to this: %s", what)
		}
	}
}

// While a job counts in values of 1 MiB that are all at home with one server, these go
// into parts on all of them, and restore puts them together again. Each worker checks what
// it pulls, and the sums are right.
func TestLargeValuesInParts(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := jobtest.Build(t, "cmd/psidecar"), jobtest.Build(t, "cmd/psjob")
	const k, ids = 4, 3
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := newPlanner(t, n.Host(0))
	p.program = program
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--split", "4", "--planner", p.address, "--state-dir", t.TempDir()))
	}
	for _, c := range []struct {
		name    string
		args    []string
		env     []string
		workers int
	}{
		{"a request for two keys", nil, nil, k},
		{"one key, push and pull in one, two workers a host", []string{"--count-batch", "1", "--count-pushpull"}, nil, 2 * k},
		{"resend and loss", nil, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=1000", "PS_DROP_MSG=2"}, k},
		{"dialect of 2018", nil, []string{"PSJOB_DIALECT=dmlc-2018"}, k},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			goesOn, end := jobtest.While(t)
			mine := hosts.Program{psjob, "--json"}
			count := append(hosts.Program{psjob, "--json", "--model", "count", "--key-map", "identity", "--count-keys", "3", "--count-batch", "2",
				"--value-length", "262144", "--steps", "10", "--count-while", goesOn}, c.args...)
			r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, hosts.Program{psjob, "--json", "--value-length", "262144"}), Workers: hosts.Repeat(c.workers, count), Env: c.env}.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- r.Wait() }()
			name := jobName(n.Host(0).IPv4)
			var fewest, most int
			var not []jobs.PartsGap
			until(t, done, "its values are in parts", func() bool {
				fewest, most, not = inParts(t, all, name)
				return fewest >= ids
			})
			before := plain(t, all)
			until(t, done, "requests for parts are answered", func() bool { return plain(t, all) > before+40 })
			p.run("restore", "--wait", "1m")
			if fewest, most, not = inParts(t, all, name); most > 0 {
				t.Errorf("after psidecar restore %d values are in parts: %v", most, not)
			}
			before = plain(t, all)
			until(t, done, "requests for whole values are answered", func() bool { return plain(t, all) > before+40 })
			if fewest, most, not = inParts(t, all, name); most > 0 {
				t.Errorf("some time after psidecar restore %d values are in parts: %v", most, not)
			}
			t.Logf("not in parts because of %v", not)
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
