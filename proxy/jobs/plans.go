package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// plans mirrors the planner for a proxy: the owners of keys in its store, and the
// batches to move.
type plans struct {
	jobs *Jobs
	done chan struct{} // a batch is

	mu     sync.Mutex // guards the rest; a job's router gets a copy of its table
	client api.PlansClient
	watch  context.CancelFunc // ends the present Watch; another follows
	listed bool               // the present Watch has sent its snapshot in full
	wanted int                // how often another Watch was asked for
	began  int                // wanted, when the present one began
	tables map[runKey]*copied
	before map[runKey]*copied // of the Watch before, while the present one's snapshot is incomplete
}

// runKey is a run of a job.
type runKey struct {
	job string
	run plan.Run
}

func newPlans(j *Jobs) *plans {
	return &plans{jobs: j, done: make(chan struct{}, 1), tables: map[runKey]*copied{}, before: map[runKey]*copied{}}
}

// connected reports whether the planner can be heard.
func (p *plans) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listed
}

// watchPlans watches until ctx ends.
func (p *plans) watchPlans(ctx context.Context) error {
	creds := p.jobs.opts.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	options := append(slices.Clone(p.jobs.opts.DialPlanner), grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}))
	told := ""
	return dial.Connect(ctx, p.jobs.opts.Planner, options, dial.PausePlanner(300*time.Millisecond), func(ctx context.Context, conn *grpc.ClientConn) (answered bool) {
		p.setClient(api.NewPlansClient(conn))
		for {
			err := p.session(ctx)
			answered = p.ended() || answered
			if ctx.Err() != nil {
				return answered
			}
			if err != nil && !errors.Is(err, errAgain) {
				if text := status.Convert(err).Message(); text != told {
					told = text
					p.jobs.log.Warn("no planner; keys stay where they are", "planner", p.jobs.opts.Planner, "error", err)
				}
				return answered
			}
		}
	})
}

func (p *plans) setClient(client api.PlansClient) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.client = client
}

// planner is where the planner is asked: by the connection of the present session, or of
// the last, which fails, while there is none.
func (p *plans) planner() api.PlansClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// ended records the end of a Watch, and reports whether its snapshot was complete.
func (p *plans) ended() (listed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed, p.listed = p.listed, false
	return listed
}

var errAgain = errors.New("watching again")

// session is one Watch.
func (p *plans) session(ctx context.Context) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.watch, p.began = cancel, p.wanted
	p.mu.Unlock()
	stream, err := p.planner().Watch(watching, &api.WatchRequest{Host: p.jobs.opts.Host, Runs: p.running()})
	if err != nil && ctx.Err() == nil && watching.Err() != nil {
		return errAgain
	}
	if err != nil {
		return err
	}
	p.beginCopies()
	beat := p.jobs.opts.Health.Add("following the planner", health.Within)
	defer beat.End()
	for {
		beat.Rest()
		e, err := stream.Recv()
		beat.Beat()
		switch {
		case err != nil && ctx.Err() == nil && watching.Err() != nil:
			return errAgain
		case errors.Is(err, io.EOF):
			return errAgain
		case err != nil:
			return err
		}
		if err := p.applyEvent(e); err != nil {
			return err
		}
	}
}

// applyEvent takes one event; it is called from one goroutine.
func (p *plans) applyEvent(e *api.PlanEvent) error {
	switch {
	case e.GetSnapshot() != nil:
		return p.snapshot(e)
	case e.GetKept() != nil:
		return p.kept(e)
	case e.GetChange() != nil:
		ranges, err := displaced(e.GetChange().GetDisplaced())
		if err != nil {
			return err
		}
		if c := p.tables[runKey{e.GetJob(), plan.Run(e.GetRun())}]; c != nil && c.table != nil {
			c.table.Set(ranges)
			c.version, c.mark = e.GetChange().GetVersion(), e.GetChange().GetMark()
			p.saw(e, c)
		}
	case e.GetLost() != nil:
		delete(p.before, runKey{e.GetJob(), plan.Run(e.GetRun())})
		delete(p.tables, runKey{e.GetJob(), plan.Run(e.GetRun())})
		if x := p.jobOf(e); x != nil {
			x.storeLost(e.GetLost())
		}
	case e.GetMove() != nil, e.GetCancel() != nil:
		if x := p.jobOf(e); x != nil {
			x.locked(func() error {
				if e.GetMove() != nil {
					x.accept(e.GetMove())
					x.beginMoves()
				} else {
					x.cancel(e.GetCancel().GetBatch())
				}
				return nil
			})
		}
	case e.GetListed() && e.GetJob() != "":
		if x := p.jobOf(e); x != nil && p.connected() {
			p.fetched(x)
		}
	case e.GetListed():
		clear(p.before)
		p.mu.Lock()
		p.listed = p.began == p.wanted // what it tells may be older than the last question
		listed := p.listed
		p.mu.Unlock()
		if !listed {
			return nil
		}
		for _, x := range p.jobs.allJobs() {
			p.fetched(x)
		}
	}
	return nil
}

// running are the runs that this host carries.
func (p *plans) running() (all []*api.Running) {
	for _, x := range p.jobs.allJobs() {
		if x.run != "" {
			x.mu.Lock()
			r := x.running()
			x.mu.Unlock()
			if c := p.copyOf(runKey{x.name, x.run}); c != nil {
				r.CopyVersion, r.CopyMark = c.version, c.mark
			}
			all = append(all, r)
		}
	}
	return all
}

// jobOf returns the job whose run an event is of, nil where this host does not
// carry it.
func (p *plans) jobOf(e *api.PlanEvent) *job {
	if x := p.jobs.named(e.GetJob(), plan.Run(e.GetRun())); x != nil && x.run != "" && string(x.run) == e.GetRun() {
		return x
	}
	return nil
}

// saw notes which store it is that has a run, and its version.
func (p *plans) saw(e *api.PlanEvent, c *copied) {
	x := p.jobOf(e)
	if x == nil || len(c.stores) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.see(c.stores[0], c.version, c.stores)
	if x.trusts(c) {
		x.lostStore = ""
	}
}

// fetched hands the planner's answer to a job that waits for it, if its store
// has what this host has seen.
func (p *plans) fetched(x *job) {
	c := p.tables[runKey{x.name, x.run}]
	if c == nil || c.table == nil || c.table.Servers() != x.servers {
		return
	}
	x.mu.Lock()
	trusted := x.trusts(c)
	x.mu.Unlock()
	if !trusted { // the planner asks for teaching, in answer to a report
		p.jobs.start(func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-time.After(teachAgain):
				p.again()
			}
		})
		return
	}
	x.fetched(c.table.Clone())
}

// again makes Watch start over: what it tells then is not older than this call.
func (p *plans) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = false
	p.wanted++
	if p.watch != nil {
		p.watch()
	}
}

func displaced(d *api.Displaced) ([]plan.Range, error) {
	first, last, owner := d.GetFirst(), d.GetLast(), d.GetOwner()
	if len(last) != 0 && len(last) != len(first) || len(owner) != 1 && len(owner) != len(first) && len(first) > 0 {
		return nil, fmt.Errorf("the planner lists %d ranges with %d ends and %d owners", len(first), len(last), len(owner))
	}
	all := make([]plan.Range, len(first))
	for i, f := range first {
		all[i] = plan.Range{Keys: plan.One(f), Owner: owner[min(i, len(owner)-1)]}
		if len(last) > 0 {
			all[i].Last = last[i]
		}
	}
	return all, nil
}

// fetch asks where keys are by the planner's store; the caller holds x.mu.
func (x *job) fetch() {
	if x.jobs.plans == nil { // nobody moves keys
		x.site.Fetched(x.router.Table())
		return
	}
	if x.fetching {
		return
	}
	x.fetching = x.jobs.start(func(ctx context.Context) {
		// What this host had recorded before it was killed must have arrived.
		select {
		case <-ctx.Done():
			return
		case <-time.After(settled - time.Since(x.learned)):
		}
		x.mu.Lock()
		x.asking = true
		x.mu.Unlock()
		x.jobs.plans.again()
	})
}

// settled is how long after its start a proxy takes what the planner has for
// all that it will ever have from the proxy before.
const settled = 400 * time.Millisecond

// fetched takes the answer.
func (x *job) fetched(t *route.Table) {
	x.locked(func() error {
		if x.asking {
			x.fetching, x.asking = false, false
			x.jobs.log.Debug("told where keys are", "job", x.name)
			x.site.Fetched(t)
			if x.router.Ready() {
				x.keepJournal()
			}
		}
		return nil
	})
}

// record has the planner's store take in a move; the caller holds x.mu.
func (x *job) record(r *migrate.Record) {
	if x.recording[r.Batch] {
		return
	}
	x.recording[r.Batch] = true
	first, last := ranges(r.Keys)
	request := &api.RecordRequest{Job: x.name, Run: string(x.run), Host: x.jobs.opts.Host, Batch: r.Plan, From: r.From, To: r.To, First: first, Last: last, Store: x.seen.store, Version: x.seen.version}
	x.jobs.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		recorded, err := x.jobs.plans.planner().Record(ctx, request)
		x.jobs.log.Debug("recorded", "job", x.name, "batch", r.Batch, "from", r.From, "to", r.To, "keys", r.Keys, "error", err)
		x.locked(func() error {
			delete(x.recording, r.Batch)
			if err == nil {
				x.see(x.seen.store, recorded.GetVersion(), nil)
			}
			switch status.Code(err) {
			case codes.OK, codes.FailedPrecondition, codes.NotFound, codes.InvalidArgument:
				x.site.Recorded(r.Batch, err)
			}
			return nil // otherwise it is said again
		})
	})
}
