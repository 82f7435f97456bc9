// Package transparency tests that a job does not notice psidecar: the same jobs
// run on the same hosts with psidecar up on none of them, on some and on all,
// one after the other on the same running proxies, and must end with the same
// results: exact sums, equal parameters to the last bit, requests in the order
// in which they were made.
package transparency

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// A trial is a job and what it must end with. Workers check the sums
// themselves, and fail where one is wrong.
type trial struct {
	name string
	job  hosts.Job
	// same wants the servers' parameters to be the same, to the last bit, with
	// proxies and without.
	same bool
	says string // by every worker
	// flaky jobs, of programs that fail without proxies now and then, are
	// started up to so many times more.
	flaky int
}

const hostCount = 4

func TestTransparency(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program := hoststest.BuildJob(t, "cmd/psidecar")
	trials := append(append(psjobs(t), peers(t)...), foreign(t)...)
	n := hoststest.New(t, hosts.Config{Hosts: hostCount})
	digests := map[string][]string{} // of each trial's servers, without proxies
	for _, with := range []struct {
		name  string
		hosts []int
	}{
		{"without", nil},
		{"on some hosts", []int{0, 2}},
		{"on all hosts", []int{0, 1, 2, 3}},
	} {
		t.Run(with.name, func(t *testing.T) {
			var sidecars []*sidecar.Sidecar
			for _, i := range with.hosts {
				sidecars = append(sidecars, sidecar.Start(t, n.Host(i), program, "sidecar", "--log-level", "warn"))
			}
			for _, trial := range trials {
				t.Run(trial.name, func(t *testing.T) {
					before := carried(t, sidecars)
					got := trial.run(t, n)
					if trial.same && with.hosts == nil {
						digests[trial.name] = got
					}
					if want := digests[trial.name]; trial.same && !slices.Equal(got, want) {
						t.Errorf("the servers end with %v, without proxies with %v", got, want)
					}
					if now := carried(t, sidecars); len(sidecars) > 0 && now-before < uint64(4*len(sidecars)) {
						t.Errorf("only %d connections went through the proxies", now-before)
					}
				})
			}
			for _, s := range sidecars {
				checkUndisturbed(t, s, len(with.hosts) == hostCount)
				s.Stop(t)
			}
		})
	}
}

// run runs the trial's job and returns what each server, by rank, ends with.
func (x *trial) run(t *testing.T, n *hosts.Net) []string {
	t.Helper()
	j := x.job
	j.Hosts = n.Hosts()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r, err := j.Run(ctx)
	for again := 0; err != nil && again < x.flaky && ctx.Err() == nil; again++ {
		t.Logf("started again: %v", err)
		r, err = j.Run(ctx)
	}
	require.NoError(t, err)
	for _, w := range r.Workers {
		if said := w.Stdout.String() + w.Stderr.String(); !strings.Contains(said, x.says) {
			t.Errorf("worker %d said %q, want %q in it", w.Index, said, x.says)
		}
	}
	if !x.same {
		return nil
	}
	ends := make([]string, len(r.Servers))
	for _, s := range r.Servers {
		var report struct {
			Rank, Keys int
			Digest     string
		}
		if err := json.Unmarshal(s.Stdout.Bytes(), &report); err != nil || report.Digest == "" || report.Keys == 0 {
			t.Fatalf("server %d ends with %q, %v", s.Index, s.Stdout.Bytes(), err)
		}
		ends[report.Rank] = report.Digest
	}
	return ends
}

func carried(t *testing.T, sidecars []*sidecar.Sidecar) (sum uint64) {
	t.Helper()
	for _, s := range sidecars {
		sum += state(t, s).Carried
	}
	return sum
}

func state(t *testing.T, s *sidecar.Sidecar) proxy.State {
	t.Helper()
	state := require.Value(s.Connections(t.Context()))(t)
	return state
}

// expected are warnings of this machine: its limits, hosts without certificates, folders of
// tests on a disk, and both cores taken.
var expected = []string{"open files limit", "(--insecure)", "the state directory is on a disk", "--cpu-budget", "job stalled"}

// checkUndisturbed wants no failures but those that jobs make themselves, by
// connecting to nodes that are not there yet or have ended; and messages encoded.
func checkUndisturbed(t *testing.T, s *sidecar.Sidecar, all bool) {
	t.Helper()
	for why, n := range state(t, s).Errors {
		switch why {
		case string(reason.Unreachable), string(reason.ResetByJob), string(reason.ResetByFarSide):
		default:
			t.Errorf("%s: %s, %d times", s.Host.Name, why, n)
		}
	}
	messages, err := s.Metric(t.Context(), "psidecar_proxy_messages_total")
	if err != nil || messages == 0 {
		t.Errorf("%s: %v messages on connections with a codec, %v", s.Host.Name, messages, err)
	}
	for line := range strings.Lines(s.Log()) {
		if all && strings.Contains(line, "level=WARN") && !slices.ContainsFunc(expected, func(text string) bool { return strings.Contains(line, text) }) {
			t.Errorf("%s warns: %s", s.Host.Name, line)
		}
	}
}

// psjobs are jobs of psjob alone.
func psjobs(t *testing.T) []trial {
	program := hoststest.BuildJob(t, "cmd/psjob")
	mine := hosts.Program{program, "--json"}
	of := func(servers, workers int, env []string, args ...string) hosts.Job {
		return hosts.Job{Scheduler: mine, Servers: hosts.Repeat(servers, mine), Env: env,
			Workers: hosts.Repeat(workers, append(mine[:2:2], args...))}
	}
	text := filepath.Join(t.TempDir(), "text.libsvm")
	f := require.Value(os.Create(text))(t)
	require.Value(dataset.WriteLibsvm(f, dataset.SyntheticText(dataset.TextOptions{Samples: 1500, Features: 5000, Seed: 1})))(t)
	require.NoError(t, f.Close())
	count := []string{"--model", "count", "--steps", "30"}
	more := func(args ...string) []string { return append(slices.Clone(count), args...) }
	all := []trial{
		{name: "count", same: true, job: of(4, 4, nil, count...)},
		{name: "count, lengths", same: true, job: of(4, 4, nil, more("--count-lens")...)},
		{name: "count, long values", same: true, job: of(2, 4, nil, more("--value-length", "1000")...)},
		{name: "count, several workers a host, heartbeats", same: true, job: of(4, 12, []string{"PS_HEARTBEAT_INTERVAL=1", "PS_HEARTBEAT_TIMEOUT=30"}, more("--start-after", "1200ms")...)},
		{name: "count, lost and repeated", same: true, job: of(4, 4, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=10"}, "--model", "count", "--steps", "5")},
		{name: "mix of apps, customers, commands, sizes", job: of(4, 4, nil, "--model", "mix", "--steps", "20", "--mix-largest", "2000000")},
		{name: "mix, lost and repeated", job: of(2, 4, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=5"}, "--model", "mix", "--mix-customers", "1", "--steps", "8")},
		{name: "logistic regression", same: true, job: of(4, 4, nil, "--data", text, "--epochs", "2")},
		{name: "factorization machine", same: true, job: of(2, 4, nil, "--model", "fm", "--data", text, "--epochs", "1")},
	}
	if os.Getenv("PSIDECAR_TRANSPARENCY") == "long" {
		all = append(all, trial{name: "a value of 1 GiB", job: of(1, 2, []string{"PS_VERBOSE=0"}, "--model", "mix", "--steps", "5", "--mix-largest", fmt.Sprint(1<<28))})
	}
	return all
}

// peers are jobs of the C++ peer, alone and mixed with psjob.
func peers(t *testing.T) []trial {
	own, mine := hosts.Program{hoststest.BuildPeer(t)}, hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	worker := func(args ...string) hosts.Program { return append(slices.Clone(own), args...) }
	of := func(node hosts.Program, workers ...hosts.Program) hosts.Job {
		return hosts.Job{Scheduler: node, Servers: hosts.Repeat(4, node), Workers: workers}
	}
	scalar := worker("--keys", "5000", "--space", "5000", "--shift", "0")
	counting := append(slices.Clone(mine), "--model", "count", "--steps", "30")
	return []trial{
		{name: "peer, scalar keys", job: of(own, hosts.Repeat(4, scalar)...)},
		{name: "peer, pushpull", job: of(own, hosts.Repeat(4, worker("--keys", "1000", "--space", "1000", "--pushpull"))...)},
		{name: "peer, lengths", job: of(own, hosts.Repeat(4, worker("--keys", "5000", "--space", "8000", "--shift", "1500", "--lens"))...)},
		{name: "peer's servers, psjob's workers", job: of(own, hosts.Repeat(4, counting)...)},
		{name: "psjob's servers, peer's workers", job: of(mine, hosts.Repeat(4, scalar)...)},
		{name: "psjob's scheduler, servers of both", job: hosts.Job{Scheduler: mine, Servers: []hosts.Program{mine, own, mine, own}, Workers: hosts.Repeat(4, scalar)}},
	}
}
