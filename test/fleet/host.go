package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/planner/api"
)

// A host is an agent that reports and a proxy that follows.
type host struct {
	fleet  *Fleet
	number int
	agent  *agent
	link   *report.Link
	proxy  *proxy

	mu      sync.Mutex // guards the rest
	rules   time.Time  // when the rules for values came last
	listed  time.Time  // when all that was displaced was known last
	reports uint64     // taken when it was last looked
	back    time.Time  // when the first report was taken after that
	// Why plans and rules do not come just now; empty: they do.
	noPlans, noRules string
}

func (h *host) name() string { return fmt.Sprintf("host%d", h.number) }

func newHost(f *Fleet, number int) *host {
	h := &host{fleet: f, number: number, agent: newAgent(number, f.jobs)}
	h.link = report.New(f.planner.address, h.name(), insecure.NewCredentials(), h.agent.report, h.agent.urgent, h.options()[1:]...)
	h.link.SetEvery(f.opts.Every)
	h.proxy = newProxy(h)
	return h
}

// options are those of the host's connections.
func (h *host) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(h.fleet.wire.dial(h.number))}
}

// proxyOptions are those of a proxy's connections.
func (h *host) proxyOptions() []grpc.DialOption {
	return append(h.options(), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}))
}

// play plays the host until ctx ends.
func (h *host) play(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.link.Run(ctx) })
	g.Go(func() error { return h.proxy.followPlans(ctx) })
	g.Go(func() error { return h.follow(ctx) })
	return g.Wait()
}

// follow takes the rules for values, as package proxy/daemon does.
func (h *host) follow(ctx context.Context) error {
	return dial.Connect(ctx, h.fleet.planner.address, h.proxyOptions(), dial.PausePlanner(500*time.Millisecond), func(ctx context.Context, conn *grpc.ClientConn) bool {
		came, err := h.followOnce(ctx, conn)
		h.noteRules(err)
		return came
	})
}

// followOnce follows over one stream until it ends, and reports whether the rules
// came.
func (h *host) followOnce(ctx context.Context, conn *grpc.ClientConn) (came bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.NewCodecsClient(conn).Follow(ctx)
	if err != nil {
		return false, err
	}
	_ = stream.Send(&api.CodecReport{Host: h.name()}) // where it fails, Recv says why
	for {
		if _, err := stream.Recv(); err != nil {
			return came, err
		}
		came = true
		h.noteRules(nil)
	}
}

// noteRules notes that the rules for values came, or why not.
func (h *host) noteRules(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.noRules = "rules: " + err.Error()
		return
	}
	h.rules, h.noRules = time.Now(), ""
}

// noteNoPlans notes why the proxy hears of no plans.
func (h *host) noteNoPlans(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noPlans = "plans: " + err.Error()
}

// troubles returns why the host has no answers just now.
func (h *host) troubles() (all []string) {
	if state := h.link.State(); !state.Connected {
		all = append(all, "reports: "+cmp.Or(state.Error, "no answer"))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range []string{h.noPlans, h.noRules} {
		if t != "" {
			all = append(all, t)
		}
	}
	return all
}

// noteListed notes that the proxy knows what is displaced.
func (h *host) noteListed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed, h.noPlans = time.Now(), ""
}

// mark looks from the start again when the agent's first report is taken.
func (h *host) mark() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reports, h.back = h.link.State().Reports, time.Time{}
}

// since returns when the planner had answered all of agent, proxy and rules after
// some time; zero: it has not.
func (h *host) since(t time.Time) time.Time {
	state := h.link.State()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.back.IsZero() && state.Connected && state.Reports > h.reports {
		h.back = time.Now()
	}
	if h.back.Before(t) || h.listed.Before(t) || h.rules.Before(t) {
		return time.Time{}
	}
	last := h.back
	for _, at := range []time.Time{h.listed, h.rules} {
		if at.After(last) {
			last = at
		}
	}
	return last
}
