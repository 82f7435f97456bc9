package reroute

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
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
	require.Await(t, what, func() error {
		if so() {
			return nil
		}
		select {
		case err := <-done:
			t.Fatalf("the job ended before %s: %v", what, err)
		default:
		}
		return errors.New("the job goes on")
	})
}

// largeJob is a job that counts in values of 1 MiB, all at home with its servers.
type largeJob struct {
	name    string
	args    []string // of its workers
	env     []string
	servers int
	workers int
}

// largeKeys is the number of values of a [largeJob].
const largeKeys = 3

// While a job counts in values of 1 MiB that are all at home with one server, these go
// into parts on all of them, and restore puts them together again. Each worker checks what
// it pulls, and the sums are right.
func TestLargeValuesInParts(t *testing.T) {
	const k = 4
	run := newLargeRun(t, k)
	for _, c := range []largeJob{
		{"a request for two keys", nil, nil, k, k},
		{"one key, push and pull in one, two workers a host", []string{"--count-batch", "1", "--count-pushpull"}, nil, k, 2 * k},
		{"resend and loss", nil, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=1000", "PS_DROP_MSG=2"}, k, k},
		{"dialect of 2018", nil, []string{"PSJOB_DIALECT=dmlc-2018"}, k, k},
		{"two servers, one key, push and pull in one, two workers a host", []string{"--count-batch", "1", "--count-pushpull"}, nil, 2, 2 * k},
	} {
		t.Run(c.name, func(t *testing.T) { run.count(t, c) })
	}
}

// largeRun is hosts with proxies that divide large values among servers.
type largeRun struct {
	net     *hosts.Net
	planner *acting.Planner
	psjob   string
	all     []*sidecar.Sidecar
}

func newLargeRun(t *testing.T, n int) *largeRun {
	require.Root(t)
	require.BPF(t)
	program := hoststest.BuildJob(t, "cmd/psidecar")
	r := &largeRun{net: hoststest.New(t, hosts.Config{Hosts: n}), psjob: hoststest.BuildJob(t, "cmd/psjob")}
	r.planner = acting.NewPlanner(t, r.net.Host(0))
	r.planner.Program = program
	for _, h := range r.net.Hosts() {
		r.all = append(r.all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--split", "4", "--planner", r.planner.Address, "--state-dir", t.TempDir()))
	}
	return r
}

// count runs a job until its values were in parts and together again.
func (r *largeRun) count(t *testing.T, c largeJob) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	goesOn, end := hoststest.WhileTraining(t)
	mine := hosts.Program{r.psjob, "--json"}
	count := append(hosts.Program{r.psjob, "--json", "--model", "count", "--key-map", "identity", "--count-keys", strconv.Itoa(largeKeys), "--count-batch", "2",
		"--value-length", "262144", "--steps", "10", "--count-while", goesOn}, c.args...)
	job, err := hosts.Job{Hosts: r.net.Hosts(), Scheduler: mine, Servers: hosts.Repeat(c.servers, hosts.Program{r.psjob, "--json", "--value-length", "262144"}), Workers: hosts.Repeat(c.workers, count), Env: c.env}.Start(ctx)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- job.Wait() }()
	name := acting.JobName(r.net.Host(0).IPv4)
	var fewest, most int
	var not []jobs.PartsGap
	until(t, done, "its values are in parts", func() bool {
		fewest, most, not = inParts(t, r.all, name)
		return fewest >= largeKeys
	})
	before := plain(t, r.all)
	until(t, done, "requests for parts are answered", func() bool { return plain(t, r.all) > before+40 })
	r.planner.Run("restore", "--wait", "1m")
	if fewest, most, not = inParts(t, r.all, name); most > 0 {
		t.Errorf("after psidecar restore %d values are in parts: %v", most, not)
	}
	before = plain(t, r.all)
	until(t, done, "requests for whole values are answered", func() bool { return plain(t, r.all) > before+40 })
	if fewest, most, not = inParts(t, r.all, name); most > 0 {
		t.Errorf("some time after psidecar restore %d values are in parts: %v", most, not)
	}
	until(t, done, "agents count what is in parts as the keys that workers use", func() bool {
		n := r.mostKeys(t, name)
		return n >= largeKeys && n <= largeKeys+1 // with the one that says whether they go on
	})
	t.Logf("not in parts because of %v", not)
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// mostKeys returns the largest number of keys that an agent has counted.
func (r *largeRun) mostKeys(t *testing.T, name string) (most uint64) {
	t.Helper()
	for _, s := range r.all {
		var all page.Jobs
		require.NoError(t, s.Get(t.Context(), sidecar.Page, "/api/v1/jobs", &all))
		for _, j := range all.Jobs {
			if j.Name == name {
				most = max(most, j.DistinctKeys)
			}
		}
	}
	return most
}

// Proxies and the planner are killed at random while a job's large values go into as many
// parts as steps say, and home in the end. The sums stay exact. So they do without PS_RESEND, if
// proxies end in order.
func TestKilledWhileValuesGoIntoParts(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		killWhileValuesGoIntoParts(t, syscall.SIGKILL, "PS_RESEND=1", "PS_RESEND_TIMEOUT=500")
	})
	t.Run("ended in order", func(t *testing.T) { killWhileValuesGoIntoParts(t, syscall.SIGTERM) })
}

func killWhileValuesGoIntoParts(t *testing.T, signal syscall.Signal, env ...string) {
	require.Root(t)
	require.BPF(t)
	const k = 4
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := acting.NewPlanner(t, n.Host(0))
	p.Program = hoststest.BuildJob(t, "cmd/psidecar")
	proxies := acting.StartProxies(t, n, append(p.Moving(), "--split", "auto")...)
	psjob := hoststest.BuildJob(t, "cmd/psjob")
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	name := net.JoinHostPort(n.Host(0).IPv4.String(), "9091")
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	goesOn, end := hoststest.WhileTraining(t)
	server := hosts.Program{psjob, "--json", "--value-length", "262144"}
	count := append(server[:4:4], "--model", "count", "--key-map", "identity", "--count-keys", "4", "--count-batch", "2", "--steps", "40", "--count-while", goesOn)
	r := require.Value(hosts.Job{Hosts: n.Hosts(), Scheduler: hosts.Program{psjob, "--json"}, Servers: hosts.Repeat(k, server), Workers: hosts.Repeat(k, count),
		Env: env}.Start(ctx))(t)
	kills, moved, restored := 0, uint64(0), false
	last := make([]uint64, k)
	var not jobs.PartsGap
	// A busy machine moves few values between kills.
	nextKill, until, latest := time.Time{}, time.Now().Add(2*time.Minute), time.Now().Add(7*time.Minute)
	untilOver(t, r, 50*time.Millisecond, func(over bool) {
		ready := true
		for i, x := range proxies {
			s, err := x.State()
			if err != nil || len(s.Jobs) != 1 || s.Jobs[0].Plain+s.Jobs[0].Split == 0 {
				ready = false
				continue
			}
			if in := s.Jobs[0].InParts; in != nil && in.Not.Reason != "" {
				not = in.Not
			}
			if now := s.Jobs[0].Moved; now < last[i] {
				moved, last[i] = moved+now, now
			} else {
				moved, last[i] = moved+now-last[i], now
			}
		}
		switch {
		case over || restored:
		case nextKill.IsZero():
			if ready {
				nextKill = time.Now().Add(time.Second)
			}
		case kills >= 12 && moved >= 8 || moved >= 4 && time.Now().After(until) || time.Now().After(latest):
			p.Restore(name)
			restored = true
			end()
		case time.Now().After(nextKill):
			nextKill = time.Now().Add(time.Duration(1000+rng.IntN(2500)) * time.Millisecond)
			if kills++; rng.IntN(6) == 0 {
				p.Again(func() {})
			} else {
				proxies[rng.IntN(k)].Current().Signal(signal)
			}
		}
	})
	if t.Logf("%d kills, %d values moved; last not in parts because of %v", kills, moved, not); kills < 3 || moved < 4 {
		t.Errorf("%d kills and %d moves of values are too few", kills, moved)
	}
}
