package reroute

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// oneRun is a run of a job while something happens to its proxies and planner.
type oneRun struct {
	t       *testing.T
	p       *planner
	proxies []*restarting
	name    string // the job's
	rng     *rand.Rand
	done    chan error // how the job has ended
	run     string     // this run's name
}

const (
	runHosts = 3
	runIDs   = 3000
)

// until waits until a condition is met, and has keys move all the time.
func (r *oneRun) until(what string, met func() (bool, string)) {
	r.t.Helper()
	why := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ok := false
		if ok, why = met(); ok {
			return
		}
		select {
		case err := <-r.done:
			r.done <- err
			r.t.Fatalf("the job has ended (%v) before %s: %s", err, what, why)
		default:
		}
		if plan := r.plan(); plan.GetRun() == r.run && plan.GetLost() == "" && !r.p.busy(r.name) {
			r.p.propose(r.rng, r.name, runIDs, 200, runHosts)
		}
	}
	r.t.Fatalf("it did not come to this within a minute: %s: %s", what, why)
}

// plan is the job's newest run in the eyes of the planner.
func (r *oneRun) plan() *api.JobPlan {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	d, err := r.p.service.Describe(context.Background(), &api.DescribeRequest{Job: r.name})
	if err != nil || len(d.GetJobs()) == 0 {
		return nil
	}
	return d.GetJobs()[0]
}

// states are those of the run on the hosts; missing says where it is not known,
// or not ready.
func (r *oneRun) states() (all []jobs.State, missing string) {
	for _, x := range r.proxies {
		s, err := x.state()
		found := false
		for _, j := range s.Jobs {
			if j.Job == r.name && string(j.Run) == r.run {
				all, found = append(all, j), true
			}
		}
		switch {
		case err != nil:
			missing += fmt.Sprintf("%s: %v; ", x.host.Name, err)
		case !found:
			missing += fmt.Sprintf("%s does not know the run; ", x.host.Name)
		case !all[len(all)-1].Ready:
			missing += fmt.Sprintf("%s is not ready: %+v; ", x.host.Name, all[len(all)-1])
		}
	}
	return all, missing
}

// displaced waits until keys are displaced, all hosts are ready, and agree with
// the planner on how many there are when nothing moves.
func (r *oneRun) displaced() {
	r.t.Helper()
	r.until("keys are displaced and all hosts are ready", func() (bool, string) {
		plan := r.plan()
		all, missing := r.states()
		return missing == "" && len(all) == runHosts && plan.GetRun() == r.run && plan.GetLost() == "" && plan.GetDisplacedKeys() > 50,
			fmt.Sprintf("%s; the planner has run %s with %d keys displaced %s", missing, plan.GetRun(), plan.GetDisplacedKeys(), plan.GetLost())
	})
}

// begin finds out which run it is.
func (r *oneRun) begin(before string) {
	r.t.Helper()
	r.until("the planner knows of a new run", func() (bool, string) {
		plan := r.plan()
		if run := plan.GetRun(); run != "" && run != before && plan.GetRunning() {
			r.run = run
		}
		return r.run != "", fmt.Sprintf("it has %q, before was %q", plan.GetRun(), before)
	})
	if plan := r.plan(); plan.GetVersion() == 0 && plan.GetDisplacedKeys() > 0 {
		r.t.Errorf("run %s begins with %d keys displaced", r.run, plan.GetDisplacedKeys())
	}
}

func (r *oneRun) signal(i int, sig os.Signal) { r.proxies[i].current().Signal(sig) }

// replaced is the happening in whose run nothing is repeated: a proxy that ends in
// order loses nothing.
const replaced = 1

// happenings are what becomes of proxies and planner in a run.
func happenings() []func(r *oneRun) {
	return []func(r *oneRun){
		func(*oneRun) {},
		replaced: func(r *oneRun) {
			s := r.proxies[r.rng.IntN(runHosts)]
			old := s.current()
			old.Signal(syscall.SIGTERM)
			r.until("the proxy is replaced", func() (bool, string) { return s.current() != old, "it has not ended, or there is no other yet" })
		},
		func(r *oneRun) { r.signal(r.rng.IntN(runHosts), syscall.SIGKILL) },
		func(r *oneRun) { // all proxies know
			r.p.lose(func() {})
		},
		func(r *oneRun) { // two know
			r.p.lose(func() { r.signal(r.rng.IntN(runHosts), syscall.SIGKILL) })
		},
		func(r *oneRun) { // nobody knows but by what was kept
			r.p.lose(func() {
				for i := range r.proxies {
					r.signal(i, syscall.SIGKILL)
				}
			})
		},
		func(r *oneRun) {
			r.p.mu.Lock()
			_, err := r.p.service.Act(context.Background(), &api.ActRequest{Job: r.name, Action: api.ActRequest_FORGET})
			r.p.mu.Unlock()
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "displaced") {
				r.t.Errorf("forgetting a job that runs: %v", err)
			}
			r.p.again()
			r.signal(r.rng.IntN(runHosts), syscall.SIGKILL)
		},
	}
}

// The same job runs again and again at one address, in one cgroup, with one planner
// whose state is never cleared. Proxies are replaced and killed, and the store is
// lost; the sums stay exact, and each run begins with all keys at home.
// PSIDECAR_RUNS=50 makes it 50 runs.
func TestRunAfterRun(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	all := happenings()
	runs := len(all)
	if s := os.Getenv("PSIDECAR_RUNS"); s != "" {
		var err error
		if runs, err = strconv.Atoi(s); err != nil || runs < 1 {
			t.Fatalf("PSIDECAR_RUNS=%q: want a number of runs", s)
		}
	}
	n := hoststest.New(t, hosts.Config{Hosts: runHosts})
	p := newPlanner(t, n.Host(0))
	proxies := startFleet(t, n, p.moving()...)
	psjob := hoststest.BuildJob(t, "cmd/psjob")
	last := ""
	for i := range runs {
		happens := i % len(all)
		if !t.Run(fmt.Sprintf("run %d, happening %d", i+1, happens), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json"}
			goesOn, end := hoststest.WhileTraining(t)
			count := hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(runIDs), "--steps", "120", "--count-while", goesOn}
			env := []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200"}
			if happens == replaced {
				env = nil
			}
			running, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(runHosts, mine), Workers: hosts.Repeat(runHosts, count),
				Env: env}.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r := &oneRun{t: t, p: p, proxies: proxies, rng: rand.New(rand.NewPCG(uint64(i), 1)), done: make(chan error, 1),
				name: net.JoinHostPort(n.Host(0).IPv4.String(), "9091")}
			go func() { r.done <- running.Wait() }()
			defer func() { cancel(); <-r.done }()
			r.begin(last)
			last = r.run
			r.displaced()
			all[happens](r)
			r.displaced()
			end()
			for {
				select {
				case err := <-r.done:
					if err != nil {
						t.Error(err)
					}
					states, missing := r.states()
					for _, s := range states {
						t.Logf("%+v", s)
					}
					t.Log(missing)
					r.done <- err
					return
				case <-time.After(50 * time.Millisecond):
					if !p.busy(r.name) {
						p.propose(r.rng, r.name, runIDs, 200, runHosts)
					}
				}
			}
		}) {
			break
		}
	}
}
