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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// plans is the proxy's side of the planner's protocol: it follows a Watch, which sends the owners
// of displaced keys and the batches to move, and sends what has become of them.
//
// Only the goroutine of watchPlans uses tables, before and watches, and only that of reporting
// unsent; mu guards the fields from client to began.
type plans struct {
	jobs *Jobs
	done chan struct{} // has a value when a batch is done

	mu     sync.Mutex // a job's router gets a copy of its table
	client api.PlansClient
	watch  context.CancelFunc // ends the current Watch; another follows
	listed bool               // the current Watch has listed everything
	wanted int                // counter of requests for a new Watch
	began  int                // wanted, when the current Watch began
	tables map[runKey]*copied
	before map[runKey]*copied // of the previous Watch, until the current one has listed everything
	// watches counts the Watches that have begun.
	watches int
	unsent  []*api.MoveReport // reports that could not be sent, one of a batch
}

// runKey identifies a run of a job.
type runKey struct {
	job string
	run plan.Run
}

func newPlans(j *Jobs) *plans {
	return &plans{jobs: j, done: make(chan struct{}, 1), tables: map[runKey]*copied{}, before: map[runKey]*copied{}}
}

// connected reports whether the planner is connected and has listed everything.
func (p *plans) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listed
}

// watchPlans follows the planner until ctx ends, over one connection after another. Without a
// planner keys stay where they are, and requests go on.
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
					p.jobs.log.Warn("planner unreachable; keys stay where they are", "planner", p.jobs.opts.Planner, "error", err)
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

// planner returns the client of the current connection or, while there is none, of the last, whose
// calls fail.
func (p *plans) planner() api.PlansClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// ended notes the end of a Watch, and reports whether it had listed everything.
func (p *plans) ended() (listed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed, p.listed = p.listed, false
	return listed
}

// errAgain ends a Watch that is to start over at once.
var errAgain = errors.New("watching again")

// session is one Watch. It returns errAgain where another is to follow over the same connection.
func (p *plans) session(ctx context.Context) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.watch, p.began = cancel, p.wanted
	p.mu.Unlock()
	stream, err := p.planner().Watch(watching, &api.WatchRequest{Host: p.jobs.opts.Host, Runs: p.running()})
	// again has canceled it: this is no failure of the planner.
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

// applyEvent handles one event of a Watch.
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
		// A change without a complete copy is part of a snapshot that is still to come.
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
					if b := x.batches[e.GetMove().GetBatch()]; b != nil {
						b.watch = p.watches
					}
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
		// A Watch that was asked to start over is outdated: what it lists may be older than that
		// call.
		p.listed = p.began == p.wanted // else it may be older than the last call of again
		listed := p.listed
		p.mu.Unlock()
		if !listed {
			return nil
		}
		for _, x := range p.jobs.allJobs() {
			x.locked(func() error {
				x.cancelUnlisted(p.watches)
				return nil
			})
			p.fetched(x)
		}
	}
	return nil
}

// running returns the runs that this host carries, and which version of their tables it has a copy
// of.
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

// jobOf returns the job of an event's run, and nil where this host does not carry that.
func (p *plans) jobOf(e *api.PlanEvent) *job {
	if x := p.jobs.named(e.GetJob(), plan.Run(e.GetRun())); x != nil && x.run != "" && string(x.run) == e.GetRun() {
		return x
	}
	return nil
}

// saw notes the planner's store, and the version that it has of a run.
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

// fetched hands the planner's table to a job that waits for it, if the store has everything that
// this host has seen. An older store, as one restored from a backup, would bring keys to servers
// that no longer have them.
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

// again has the Watch start over, so that what it lists is not older than this call.
func (p *plans) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = false
	p.wanted++
	if p.watch != nil {
		p.watch()
	}
}

// displaced converts the planner's list of displaced keys. Without ends each range is one key; a
// single owner is that of all.
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
