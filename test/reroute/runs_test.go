package reroute

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// oneRun is a run of a job while something happens to its proxies and planner.
type oneRun struct {
	t       *testing.T
	p       *acting.Planner
	proxies []*acting.Restarting
	name    string // the job's
	rng     *rand.Rand
	done    chan error // how the job has ended
	run     string     // this run's name
	names   string     // the hosts file in which proxies look the planner up
}

const (
	runHosts = 3
	runIDs   = 3000
)

// until waits until a condition is met, and has keys move all the time.
func (r *oneRun) until(what string, met func() (bool, string)) {
	r.t.Helper()
	require.Await(r.t, what, func() error {
		ok, why := met()
		if ok {
			return nil
		}
		select {
		case err := <-r.done:
			r.done <- err
			r.t.Fatalf("the job has ended (%v) before %s: %s", err, what, why)
		default:
		}
		if plan := r.plan(); plan.GetRun() == r.run && plan.GetLost() == "" && !r.p.Busy(r.name) {
			r.p.Propose(r.rng, r.name, hoststest.JobKeys(r.t, runIDs), 200, runHosts)
		}
		return errors.New(why)
	})
}

// plan is the job's newest run in the eyes of the planner.
func (r *oneRun) plan() (newest *api.JobPlan) {
	r.p.Do(func(s *plans.Service) {
		if d, err := s.Describe(context.Background(), &api.DescribeRequest{Job: r.name}); err == nil && len(d.GetJobs()) > 0 {
			newest = d.GetJobs()[0]
		}
	})
	return newest
}

// states are those of the run on the hosts; missing says where it is not known,
// or not ready.
func (r *oneRun) states() (all []jobs.State, missing string) {
	for _, x := range r.proxies {
		s, err := x.State()
		found := false
		for _, j := range s.Jobs {
			if j.Job == r.name && string(j.Run) == r.run {
				all, found = append(all, j), true
			}
		}
		switch {
		case err != nil:
			missing += fmt.Sprintf("%s: %v; ", x.Host.Name, err)
		case !found:
			missing += fmt.Sprintf("%s does not know the run; ", x.Host.Name)
		case !all[len(all)-1].Ready:
			missing += fmt.Sprintf("%s is not ready: %+v; ", x.Host.Name, all[len(all)-1])
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

// moves waits until the planner, wherever it is, has recorded another move of a proxy's.
func (r *oneRun) moves() {
	r.t.Helper()
	before := r.plan().GetVersion()
	r.until("another move is recorded", func() (bool, string) {
		plan := r.plan()
		return plan.GetLost() == "" && plan.GetVersion() > before, fmt.Sprintf("version %d, was %d %s", plan.GetVersion(), before, plan.GetLost())
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

func (r *oneRun) signal(i int, sig os.Signal) { r.proxies[i].Current().Signal(sig) }

// replaced is the happening in whose run nothing is repeated: a proxy that ends in
// order loses nothing.
const replaced = 1

// happenings are what becomes of proxies and planner in a run.
func happenings() []func(r *oneRun) {
	return []func(r *oneRun){
		func(*oneRun) {},
		replaced: func(r *oneRun) {
			s := r.proxies[r.rng.IntN(runHosts)]
			old := s.Current()
			old.Signal(syscall.SIGTERM)
			r.until("the proxy is replaced", func() (bool, string) { return s.Current() != old, "it has not ended, or there is no other yet" })
		},
		func(r *oneRun) { r.signal(r.rng.IntN(runHosts), syscall.SIGKILL) },
		func(r *oneRun) { // all proxies know
			r.p.Lose(func() {})
		},
		func(r *oneRun) { // two know
			r.p.Lose(func() { r.signal(r.rng.IntN(runHosts), syscall.SIGKILL) })
		},
		func(r *oneRun) { // nobody knows but by what was kept
			r.p.Lose(func() {
				for i := range r.proxies {
					r.signal(i, syscall.SIGKILL)
				}
			})
		},
		func(r *oneRun) {
			err := r.p.Order(r.name, api.ActRequest_FORGET)
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "displaced") {
				r.t.Errorf("forgetting a job that runs: %v", err)
			}
			r.p.Again(func() {})
			r.signal(r.rng.IntN(runHosts), syscall.SIGKILL)
		},
		func(r *oneRun) { // its store is damaged, so that it begins without one
			file := r.p.File
			r.p.Again(func() {
				require.NoError(r.t, os.Truncate(file, 8192))
			})
			if _, err := os.Stat(file + ".damaged"); err != nil {
				r.t.Errorf("the damaged store is not beside the new one: %v", err)
			}
		},
		func(r *oneRun) { // it comes back elsewhere, with its store on a volume
			r.p.Again(r.reschedule)
		},
		func(r *oneRun) { // it comes back elsewhere, and its store was lost with its pod
			r.p.Lose(r.reschedule)
		},
	}
}

// plannerName is the name at which proxies look for the planner, as for a Service.
const plannerName = "planner.test"

// reschedule has the planner start on another host, which has its name from then on.
func (r *oneRun) reschedule() {
	here := slices.IndexFunc(r.proxies, func(x *acting.Restarting) bool { return x.Host == r.p.Host })
	r.p.Host = r.proxies[(here+1)%runHosts].Host
	r.p.Address = net.JoinHostPort(r.p.Host.IPv4.String(), acting.PlannerPort)
	writeNames(r.t, r.names, r.p.Host)
}

// writeNames writes a hosts file. It is not replaced: it is mounted.
func writeNames(t *testing.T, file string, planner *hosts.Host) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte("127.0.0.1 localhost\n"+planner.IPv4.String()+" "+plannerName+"\n"), 0o644))
}

// withNames returns a program that runs another one, which has the file as its /etc/hosts.
func withNames(t *testing.T, file, program string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "psidecar")
	text := fmt.Sprintf("#!/bin/sh\nexec unshare --mount --propagation slave sh -c 'mount --bind %s /etc/hosts && exec %s \"$@\"' sh \"$@\"\n", file, program)
	require.NoError(t, os.WriteFile(script, []byte(text), 0o755))
	return script
}

// The same job runs again and again at one address, in one cgroup, with one planner
// whose state is never cleared. Proxies are replaced and killed, the planner is
// restarted, also on another host, and its store is lost or damaged; the sums stay
// exact, and each run begins with all keys at home.
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
	p := acting.NewPlanner(t, n.Host(0))
	names := filepath.Join(t.TempDir(), "hosts")
	writeNames(t, names, p.Host)
	proxies := acting.StartProxiesOf(t, withNames(t, names, hoststest.BuildJob(t, "cmd/psidecar")), n.Hosts(), "--act", "--handler", "add", "--planner", net.JoinHostPort(plannerName, acting.PlannerPort))
	psjob := hoststest.BuildJob(t, "cmd/psjob")
	last := ""
	for i := range runs {
		happens := i % len(all)
		if !t.Run(fmt.Sprintf("run %d, happening %d", i+1, happens), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json"}
			goesOn, end := hoststest.WhileTraining(t)
			count := hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(runIDs), "--steps", "120", "--count-while", goesOn}
			env := []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200"}
			if happens == replaced {
				env = nil
			}
			running := require.Value(hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(runHosts, mine), Workers: hosts.Repeat(runHosts, count),
				Env: env}.Start(ctx))(t)
			r := &oneRun{t: t, p: p, proxies: proxies, names: names, rng: rand.New(rand.NewPCG(uint64(i), 1)), done: make(chan error, 1),
				name: net.JoinHostPort(n.Host(0).IPv4.String(), "9091")}
			go func() { r.done <- running.Wait() }()
			defer func() { cancel(); <-r.done }()
			r.begin(last)
			last = r.run
			r.displaced()
			all[happens](r)
			r.moves()
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
					if !p.Busy(r.name) {
						p.Propose(r.rng, r.name, hoststest.JobKeys(r.t, runIDs), 200, runHosts)
					}
				}
			}
		}) {
			break
		}
	}
}
