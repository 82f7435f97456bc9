package reroute

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// succession is a job of which the last host's worker is killed, and another process takes its
// place.
type succession struct {
	t    *testing.T
	net  *hosts.Net
	p    *acting.Planner
	all  []*sidecar.Sidecar
	name string     // the job's
	done chan error // how the rest of the job has ended
	// psjob is the program; with it all workers rest before step successionCut, the last host's in
	// the folder own and the others in another.
	psjob       string
	others, own string
}

// In successionCut of a worker's successionSteps steps it is killed.
const (
	successionHosts = 4
	successionIDs   = 3000
	successionCut   = 20
	successionSteps = 200
)

func newSuccession(t *testing.T) *succession {
	t.Helper()
	program := hoststest.BuildJob(t, "cmd/psidecar")
	s := &succession{t: t, net: hoststest.New(t, hosts.Config{Hosts: successionHosts}), done: make(chan error, 1),
		psjob: hoststest.BuildJob(t, "cmd/psjob"), others: t.TempDir(), own: t.TempDir()}
	s.p, s.name = acting.NewPlanner(t, s.net.Host(0)), acting.JobName(s.net.Host(0).IPv4)
	for _, h := range s.net.Hosts() {
		s.all = append(s.all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--planner", s.p.Address, "--state-dir", t.TempDir(), "--grace", "1m"))
	}
	return s
}

// count returns the command line of a worker that rests where files in a folder say so.
func (s *succession) count(rest string, more ...string) hosts.Program {
	return append(hosts.Program{s.psjob, "--json", "--model", "count", "--async", "--count-keys", strconv.Itoa(successionIDs),
		"--steps", strconv.Itoa(successionSteps), "--count-compute", "40ms", "--count-rest", rest,
		"--count-cut", fmt.Sprintf("%d,%d", s.rank(successionHosts-1), successionCut)}, more...)
}

// start starts the job without the last host's worker.
func (s *succession) start(ctx context.Context) *hosts.Running {
	s.t.Helper()
	mine := hosts.Program{s.psjob, "--json"}
	r := require.Value(hosts.Job{Hosts: s.net.Hosts(), Scheduler: mine, Servers: hosts.Repeat(successionHosts, mine),
		Workers: hosts.Repeat(successionHosts-1, s.count(s.others)), Env: []string{"DMLC_NUM_WORKER=" + strconv.Itoa(successionHosts)}}.Start(ctx))(s.t)
	go func() { s.done <- r.Wait() }()
	return r
}

// await waits until a condition is met; the condition says what is missing.
func (s *succession) await(what string, met func() (bool, string)) {
	s.t.Helper()
	require.Await(s.t, what, func() error {
		ok, why := met()
		if ok {
			return nil
		}
		select {
		case err := <-s.done:
			s.done <- err
			s.t.Fatalf("the job has ended (%v) before %s: %s", err, what, why)
		default:
		}
		return errors.New(why)
	})
}

// state is what the proxy on a host says of the job; empty while it does not know it.
func (s *succession) state(host int) jobs.State {
	s.t.Helper()
	for _, j := range states(s.t, s.all[host]) {
		if j.Job == s.name {
			return j
		}
	}
	return jobs.State{}
}

// rank is that of the server, and of the worker, on a host: hosts are numbered as text, descending.
func (s *succession) rank(host int) (rank int) {
	for _, h := range s.net.Hosts() {
		if h.IPv4.String() > s.net.Host(host).IPv4.String() {
			rank++
		}
	}
	return rank
}

// propose has the planner move keys, unless it does so already, and returns how many are not where
// they shall be.
func (s *succession) propose(targets []plan.Range) (away int) {
	s.t.Helper()
	servers := len(s.net.Hosts())
	s.p.Do(func(service *plans.Service) {
		service.View(s.name, func(w plans.Where) {
			for _, r := range targets {
				owner := w.Owners.Owner(r.First)
				if owner == plan.Home {
					owner = plan.HomeOf(r.First, servers)
				}
				if owner != r.Owner {
					away++
				}
			}
		})
		if moving, _ := service.Busy(s.name); away > 0 && !moving {
			require.Value(service.Propose(s.t.Context(), plans.Proposal{Job: s.name, Servers: servers, Reason: "a test", Targets: targets}))(s.t)
		}
	})
	return away
}

// targetsOf gives keys to owners.
func targetsOf(keys []uint64, owner func(i int) int32) (targets []plan.Range) {
	for i, key := range keys {
		targets = append(targets, plan.Range{Keys: plan.One(key), Owner: owner(i)})
	}
	return targets
}

// move moves keys to owners, and waits until all of them are there.
func (s *succession) move(keys []uint64, owner func(i int) int32) {
	s.t.Helper()
	targets := targetsOf(keys, owner)
	s.await("the keys are moved", func() (bool, string) {
		away := s.propose(targets)
		return away == 0 && !s.p.Busy(s.name), fmt.Sprintf("%d of %d are not; %+v", away, len(keys), s.state(len(s.all)-1))
	})
}

// startWorker starts the last host's worker.
func (s *succession) startWorker(ctx context.Context, more ...string) (*hosts.Process, *hosts.Log) {
	s.t.Helper()
	program := s.count(s.own, more...)
	h, n := s.net.Host(successionHosts-1), strconv.Itoa(successionHosts)
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Env = append(os.Environ(), "DMLC_ROLE=worker", "DMLC_NUM_SERVER="+n, "DMLC_NUM_WORKER="+n,
		"DMLC_PS_ROOT_URI="+s.net.Host(0).IPv4.String(), "DMLC_PS_ROOT_PORT=9091", "DMLC_NODE_HOST="+h.IPv4.String())
	log := new(hosts.Log)
	cmd.Stderr = log
	p := require.Value(h.StartIn("job", cmd))(s.t)
	return p, log
}

// holdForever has a proxy hold some keys of a server, and stops that server and the proxy beside it,
// which would move them: the hold lasts until both go on.
func (s *succession) holdForever(server *hosts.Node, host int, targets []plan.Range) {
	s.t.Helper()
	require.NoError(s.t, server.Signal(syscall.SIGSTOP))
	last := len(s.all) - 1
	s.await("the keys are held", func() (bool, string) {
		s.propose(targets)
		if s.state(last).Holds == 0 {
			return false, "nothing is held"
		}
		require.NoError(s.t, s.all[host].Process.Pause())
		if s.state(last).Holds > 0 {
			return true, ""
		}
		require.NoError(s.t, s.all[host].Process.Resume())
		return false, "the move was given up at that moment"
	})
}

// restAt makes a file for psjob's --count-rest, and returns what removes it.
func restAt(t *testing.T, folder string, step int) (remove func()) {
	t.Helper()
	path := filepath.Join(folder, strconv.Itoa(step))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return func() {
		require.NoError(t, os.Remove(path))
	}
}

// keysOf returns the keys of a step of the last host's worker.
func (s *succession) keysOf(step int) []uint64 {
	s.t.Helper()
	spread := require.Value(dataset.ParseKeyMap("spread"))(s.t)
	// psjob's defaults.
	of := require.Value(train.CountKeys(train.CountOptions{Keys: successionIDs, Batch: 100, Skew: 1}, 1, &spread))(s.t)
	return slices.Clone(of(s.rank(successionHosts-1), step))
}

// ofOneHome returns those of an owner's keys that are at home where the first of them is. Of the
// keys, each server in turn owns one.
func ofOneHome(keys []uint64, owner int32) (some []uint64) {
	for i, key := range keys {
		if int32(i%successionHosts) != owner {
			continue
		}
		if len(some) == 0 || plan.HomeOf(key, successionHosts) == plan.HomeOf(some[0], successionHosts) {
			some = append(some, key)
		}
	}
	return some
}

// A worker is killed in a push: some parts of it are on their way to a server that does not answer,
// and some keys wait for a move. Another process takes its place. The sums are exact but for that
// push, of which each value is in the sum or is not; its keys can move again, so that no move waits
// for what the dead worker has asked.
func TestWorkerTakesThePlaceOfOneThatWasKilled(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	const last, stuck = successionHosts - 1, 1
	s := newSuccession(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	goOn, begin := restAt(t, s.others, successionCut), restAt(t, s.own, successionCut)
	r := s.start(ctx)
	defer func() { cancel(); <-s.done }()
	victim, said := s.startWorker(ctx)
	s.await("all workers rest", func() (bool, string) {
		for _, w := range r.Workers {
			if !strings.Contains(w.Stderr.String(), "resting") {
				return false, fmt.Sprintf("worker %d has yet to", w.Index)
			}
		}
		return strings.Contains(said.String(), "resting"), "the last has yet to"
	})
	keys, owner := s.keysOf(successionCut), int32(s.rank(stuck))
	s.move(keys, func(i int) int32 { return int32(i % successionHosts) })
	// Keys of one home: requests to other servers go.
	s.holdForever(r.Servers[stuck], stuck, targetsOf(ofOneHome(keys, owner), func(int) int32 { return (owner + 1) % successionHosts }))
	begin()
	s.await("the push is under way, and a part of it waits", func() (bool, string) {
		j := s.state(last)
		split := slices.ContainsFunc(j.UnderWay, func(u string) bool { return strings.HasSuffix(u, "split true") })
		return split && j.Waiting > 0, fmt.Sprintf("%+v", j)
	})
	require.NoError(t, victim.Kill())
	<-victim.Done()
	require.NoError(t, errors.Join(r.Servers[stuck].Signal(syscall.SIGCONT), s.all[stuck].Process.Resume()))
	goOn()
	// Until it has asked for anything, only the end of the dead worker ends what that has asked: later
	// a request of the same timestamp does.
	resume, end := restAt(t, s.own, successionCut+1), restAt(t, s.own, successionSteps-10)
	next, said := s.startWorker(ctx, "--count-from", strconv.Itoa(successionCut+1))
	s.move(keys, func(int) int32 { return owner })
	resume()
	s.move(keys, func(int) int32 { return (owner + 2) % successionHosts })
	j := s.state(last)
	if t.Logf("abandoned: %v", j.Abandoned); j.Abandoned["connection_ended"]+j.Abandoned["worker_restarted"] == 0 {
		t.Errorf("no request counts as abandoned: %+v", j)
	}
	end()
	if err := next.Wait(ctx); err != nil {
		t.Fatalf("the worker in its place: %v\n%s", err, said)
	}
	err := <-s.done
	if s.done <- err; err != nil {
		t.Fatal(err)
	}
	for _, s := range s.all {
		s.Unguarded(t)
		s.Stop(t)
	}
}
