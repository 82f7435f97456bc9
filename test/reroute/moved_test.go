package reroute

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// planner is a planner whose plans the test makes.
type planner struct {
	t       *testing.T
	host    *hosts.Host
	file    string
	address string
	program string // psidecar, for its verbs

	mu      sync.Mutex
	service *plans.Service
	server  *grpc.Server
	store   *store.File
	serving sync.WaitGroup
}

func newPlanner(t *testing.T, h *hosts.Host) *planner {
	p := &planner{t: t, host: h, file: filepath.Join(t.TempDir(), "plans"), address: net.JoinHostPort(h.IPv4.String(), "9821")}
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *planner) start() {
	p.t.Helper()
	var err error
	if p.store, err = store.OpenFile(p.file); err != nil {
		p.t.Fatal(err)
	}
	if p.service, err = plans.New(context.Background(), p.store, plans.Options{Act: true}); err != nil {
		p.t.Fatal(err)
	}
	l, err := p.host.Listen(context.Background(), "tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.server = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	api.RegisterPlansServer(p.server, p.service)
	p.serving.Go(func() { p.server.Serve(l) })
}

// kill ends the planner without a word to anybody.
func (p *planner) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Stop()
	p.serving.Wait()
	p.store.Close()
}

// again kills the planner and starts it again from its store.
func (p *planner) again() {
	p.kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start()
}

// lose kills the planner, calls meanwhile, and starts it again with an empty
// store.
func (p *planner) lose(meanwhile func()) {
	p.kill()
	meanwhile()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.file = filepath.Join(p.t.TempDir(), "plans")
	p.start()
}

// propose proposes that the ids go to servers at random, n of them, and reports
// whether any has to move.
func (p *planner) propose(rng *rand.Rand, jobName string, ids, n, servers int) bool {
	keys := hoststest.JobKeys(p.t, ids)
	proposal := plans.Proposal{Job: jobName, Servers: servers, Reason: "a test"}
	for range n {
		key := keys[rng.IntN(ids)]
		proposal.Targets = append(proposal.Targets, plan.Range{Keys: plan.One(key), Owner: rng.Int32N(int32(servers))})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.service.Propose(context.Background(), proposal)
	return err == nil
}

// busy reports whether moves are under way.
func (p *planner) busy(jobName string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	moving, _ := p.service.Busy(jobName)
	return moving
}

// jobName is what a job is called whose scheduler has that address.
func jobName(scheduler netip.Addr) string { return netip.AddrPortFrom(scheduler, 9091).String() }

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

// While a job counts, its keys move from server to server. When it has ended, so
// do the moves that were left, and nothing keeps a proxy from ending.
func TestMoved(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k = 4
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := newPlanner(t, n.Host(0))
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--planner", p.address, "--state-dir", t.TempDir(), "--grace", "1m"))
	}
	for _, c := range []struct {
		name string
		ids  int
		args []string
		env  []string
		six  bool
	}{
		{"scalars", 3000, nil, nil, false},
		{"IPv6", 3000, nil, nil, true},
		// With lengths a key that nobody has used has none, and cannot move.
		{"lengths", 60, []string{"--count-lens", "--count-batch", "60"}, nil, false},
		{"lengths, resend and loss", 60, []string{"--count-lens", "--count-batch", "60"}, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=1"}, false},
		{"lengths, dialect of 2018, resend and loss", 60, []string{"--count-lens", "--count-batch", "60"}, []string{"PSJOB_DIALECT=dmlc-2018", "PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=1"}, false},
		{"push and pull in one", 3000, []string{"--count-pushpull"}, nil, false},
		{"dialect of 2018", 3000, nil, []string{"PSJOB_DIALECT=dmlc-2018"}, false},
		{"dialect of 2017, resend and loss", 3000, nil, []string{"PSJOB_DIALECT=dmlc-2017", "PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=2"}, false},
		{"resend and loss", 3000, nil, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=2"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json"}
			goesOn, end := hoststest.WhileTraining(t)
			count := append(hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(c.ids), "--steps", "40", "--count-while", goesOn}, c.args...)
			name := jobName(n.Host(0).IPv4)
			if c.six {
				name = jobName(n.Host(0).IPv6)
			}
			var before plan.Run
			for _, j := range runStates(t, all, name, "") {
				before = j.Run
			}
			r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count), Env: c.env, IPv6: c.six}.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			rng, requests, moved := rand.New(rand.NewPCG(1, 1)), uint64(0), uint64(0)
			untilOver(t, r, 50*time.Millisecond, func(over bool) {
				if over || p.busy(name) {
					return
				}
				requests, moved = 0, 0
				for _, j := range runStates(t, all, name, before) {
					requests, moved = requests+j.Plain+j.Split, moved+j.Moved
				}
				if moved >= 300 {
					end()
				}
				if requests > 20 {
					p.propose(rng, name, c.ids, 200, k)
				}
			})
			moved = 0
			for _, j := range runStates(t, all, name, before) {
				moved += j.Moved
			}
			if t.Logf("%d keys moved", moved); moved < 100 {
				t.Errorf("only %d keys moved; with moves proposed after %d requests: %+v", moved, requests, runStates(t, all, name, before))
			}
			for end := time.Now().Add(time.Minute); p.busy(name); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("a minute after the job's end the planner still has moves under way")
				}
			}
		})
	}
	for _, s := range all {
		s.Unguarded(t)
		s.Stop(t)
	}
}
