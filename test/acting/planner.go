// Package acting has keys of a test's jobs moved: a planner whose plans the test makes, in the
// test's process, and an agent and a proxy on each host that are started again whenever they are
// killed.
package acting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	process "github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// PlannerPort is the planner's port on its host.
const PlannerPort = "9821"

// Planner is a planner whose plans the test makes. Its exported fields may change while it is away.
type Planner struct {
	Host    *hosts.Host
	File    string // its store
	Address string
	Program string // psidecar, for its verbs
	t       *testing.T

	mu      sync.Mutex // guards what follows
	service *plans.Service
	stop    context.CancelFunc
	ended   chan error
}

// NewPlanner starts a planner, which ends with the test.
func NewPlanner(t *testing.T, h *hosts.Host) *Planner {
	p := &Planner{t: t, Host: h, File: filepath.Join(t.TempDir(), "plans"), Address: net.JoinHostPort(h.IPv4.String(), PlannerPort)}
	p.start()
	t.Cleanup(p.Kill)
	return p
}

func (p *Planner) start() {
	p.t.Helper()
	kept := require.Value(store.OpenFile(p.File))(p.t)
	l := require.Value(p.Host.Listen(context.Background(), "tcp", p.Address))(p.t)
	made, err := process.New(context.Background(), process.Options{Reports: l, Store: kept, Open: true, Act: true, Live: live.DefaultOptions})
	require.NoError(p.t, err)
	ctx, stop := context.WithCancel(context.Background())
	p.service, p.stop, p.ended = made.Plans(), stop, make(chan error, 1)
	go func() { p.ended <- made.Run(ctx) }()
}

// Kill ends the planner without a word to anybody.
func (p *Planner) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
	if err := <-p.ended; err != nil {
		p.t.Error(err)
	}
}

// Again kills the planner, calls meanwhile, and starts it again from its store.
func (p *Planner) Again(meanwhile func()) {
	p.Kill()
	meanwhile()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start()
}

// Lose is Again, with an empty store.
func (p *Planner) Lose(meanwhile func()) {
	p.Again(func() {
		meanwhile()
		p.File = filepath.Join(p.t.TempDir(), "plans")
	})
}

// Propose proposes that n of the keys go to servers at random, and reports whether any has to move.
func (p *Planner) Propose(rng *rand.Rand, jobName string, keys []uint64, n, servers int) bool {
	proposal := plans.Proposal{Job: jobName, Servers: servers, Reason: "a test"}
	for range n {
		key := keys[rng.IntN(len(keys))]
		proposal.Targets = append(proposal.Targets, plan.Range{Keys: plan.One(key), Owner: rng.Int32N(int32(servers))})
	}
	var err error
	p.Do(func(s *plans.Service) { _, err = s.Propose(context.Background(), proposal) })
	return err == nil
}

// Do calls f with the planner's plans while nobody ends it.
func (p *Planner) Do(f func(s *plans.Service)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.service)
}

// Busy reports whether moves are under way.
func (p *Planner) Busy(jobName string) (moving bool) {
	p.Do(func(s *plans.Service) { moving, _ = s.Busy(jobName) })
	return moving
}

// JobName is what a job is called whose scheduler has that address.
func JobName(scheduler netip.Addr) string { return netip.AddrPortFrom(scheduler, 9091).String() }

// Refuses waits for the planner to say why keys were not moved.
func (p *Planner) Refuses(jobName, reason, says string) {
	p.t.Helper()
	require.Await(p.t, fmt.Sprintf("psidecar plan show says %q and %q", reason, says), func() error {
		if told := p.Run("plan", "show"); !strings.Contains(told, jobName) || !strings.Contains(told, reason) || !strings.Contains(told, says) {
			return errors.New(told)
		}
		return nil
	})
}

// Run runs a verb of psidecar against the planner.
func (p *Planner) Run(args ...string) string {
	p.t.Helper()
	cmd := exec.Command(p.Program, append(args, "--planner", p.Address)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.Host.Run(p.t.Context(), cmd); err != nil {
		p.t.Errorf("psidecar %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// Order has the planner do something about a job's plans.
func (p *Planner) Order(jobName string, what api.ActRequest_Action) (err error) {
	p.Do(func(s *plans.Service) {
		_, err = s.Act(context.Background(), &api.ActRequest{Job: jobName, Action: what})
	})
	return err
}

// Restore asks for all keys to go home, until the planner takes it: proxies that were killed a
// moment ago may have to say first what they know.
func (p *Planner) Restore(jobName string) {
	p.t.Helper()
	require.Await(p.t, "the planner takes a restore", func() error { return p.Order(jobName, api.ActRequest_RESTORE) })
}
