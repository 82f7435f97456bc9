package planner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner/api"
)

// serve serves agents, proxies and operators until ctx ends, and then closes the store.
func (p *Planner) serve(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, p.kept.Close()) }()
	server := grpc.NewServer(append(NewIntake(MessageMemory, ReportMemory).Options(), // first, so that it sees calls that others refuse
		grpc.Creds(p.credentials()), grpc.ConnectionTimeout(handshakeIn),
		grpc.ChainUnaryInterceptor(p.opts.Policy.Unary), grpc.ChainStreamInterceptor(p.opts.Policy.Stream),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))...)
	api.RegisterPlannerServer(server, p.reports)
	api.RegisterPlansServer(server, p.plans)
	api.RegisterCodecsServer(server, p.codecs)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.live.Run(ctx) })
	g.Go(func() error { p.lookAfter(ctx); return nil })
	g.Go(func() error { p.plans.Tend(ctx); return nil })
	g.Go(func() error { p.keepRuns(ctx); return nil })
	if p.opts.Act {
		g.Go(func() error { p.sumPushes(ctx); return nil })
	}
	slog.Info("accepting reports", "address", p.opts.Reports.Addr().String())
	g.Go(func() error {
		<-ctx.Done()
		// Watch and Follow streams never end by themselves, so a graceful stop would wait for ever.
		server.Stop()
		return nil
	})
	g.Go(func() error {
		return p.serveAt(ctx, server, handshake.Listener{Listener: p.opts.Reports, Set: p.opening})
	})
	if p.opts.Control != nil {
		g.Go(func() error { return p.serveAt(ctx, server, p.opts.Control) })
	}
	return g.Wait()
}

// lookAfter is the liveness check of the plans, until ctx ends. Describe takes the lock that every
// call for plans needs; if it is never released the beat stops, and the loop counts as hung.
func (p *Planner) lookAfter(ctx context.Context) {
	beat := p.opts.Health.Add("answering for plans", health.Within)
	defer beat.End()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		beat.Beat()
		_, err := p.plans.Describe(ctx, &api.DescribeRequest{Job: "no job has this name"})
		if err == nil {
			slog.Debug("a job of a strange name has a plan")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// keepRuns updates the history of jobs, until ctx ends. A store that cannot be written is logged
// once for each different error, and the update repeated.
func (p *Planner) keepRuns(ctx context.Context) {
	beat := p.opts.Health.Add("keeping the runs of jobs", every+health.Within)
	defer beat.End()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	told := ""
	for {
		beat.Beat()
		text := ""
		if err := p.runs.Look(ctx, runLook{Reports: p.reports.Lately(), Titles: p.state.Titles(), Run: p.runOf}); err != nil && ctx.Err() == nil {
			if text = err.Error(); text != told {
				slog.Warn("cannot save the history of jobs; retrying", "error", err)
			}
		}
		if err := p.codecs.EndRuns(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("cannot end the rules of a run that is over; retrying", "error", err)
		}
		told = text
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// processesOf returns what agents have reported lately of a job's processes, by its name or its
// scheduler's address.
func (p *Planner) processesOf(job string) JobProcesses {
	titles := p.state.Titles()
	all := JobProcesses{Lately: map[string]bool{}}
	for _, h := range p.reports.Lately() {
		all.Lately[h.GetHost()] = true
		for _, j := range h.GetJobs() {
			nanos := j.GetRunningSinceUnixNanos()
			if nanos == 0 || j.GetJob() != job && titles[j.GetJob()].Name != job {
				continue
			}
			all.On = append(all.On, h.GetHost())
			if since := time.Unix(0, nanos); all.Since.IsZero() || since.Before(all.Since) {
				all.Since = since
			}
		}
	}
	slices.Sort(all.On)
	all.On = slices.Compact(all.On)
	return all
}

// runOf returns the short name of the job's newest run if its node table has that digest, and "" if
// no proxy has reported such a run. Agents know a run by its table, proxies by its name.
func (p *Planner) runOf(job string, table uint64) string {
	run := p.plans.Run(job)
	if digest, known := run.Table(); !known || digest != table {
		return ""
	}
	return run.Short()
}

// handshakeIn is how long a connection may take to identify itself.
const handshakeIn = 10 * time.Second

// serveAt serves at one listener until the server is stopped.
func (p *Planner) serveAt(ctx context.Context, server *grpc.Server, l net.Listener) error {
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("taking reports at %s: %w", l.Addr(), err)
	}
	return nil
}

// credentials returns how callers are identified: by certificate, by the user behind a unix socket
// or a loopback connection, or not at all. Each connection counts as opening until it is.
func (p *Planner) credentials() credentials.TransportCredentials {
	var tls credentials.TransportCredentials
	if p.opts.Identity != nil {
		tls = identity.ServerCredentials(p.opts.Identity)
	}
	return handshake.Credentials{TransportCredentials: control.Credentials(tls, p.opts.Users, p.opts.Open, p.opts.Policy.Failed)}
}
