package main

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// moveKeys is how many ranges a proxy moves at a time, maxMoving how many groups of
// them: as proxies do, where groups are small.
const (
	moveKeys  = 2048
	maxMoving = 32
)

// fullEvery is of how many proxies one keeps where all keys are; the others keep the
// version alone.
const fullEvery = 100

// A proxy follows where keys are, and says of each move of its server that it is
// done, at once.
type proxy struct {
	host  *host
	moves chan *api.PlanEvent
	done  chan *api.MoveReport // not told yet

	mu     sync.Mutex // guards the rest
	jobs   map[string]*copied
	client api.PlansClient // of the last connection; set before anything moves
}

// copied is what the proxy has of a job.
type copied struct {
	job     *job
	version uint64
	mark    uint64 // of the version
	store   string
	owners  *plan.Owners // nil: not kept
}

func newProxy(h *host) *proxy {
	p := &proxy{host: h, moves: make(chan *api.PlanEvent, 1<<14), done: make(chan *api.MoveReport, maxMoving), jobs: map[string]*copied{}}
	for _, j := range h.fleet.jobs {
		p.jobs[j.name] = &copied{job: j}
		if p.keepsOwners() {
			p.jobs[j.name].owners = &plan.Owners{}
		}
	}
	return p
}

// keepsOwners reports whether the proxy keeps where all keys are.
func (p *proxy) keepsOwners() bool { return p.host.number%fullEvery == 0 }

// followPlans follows until ctx ends.
func (p *proxy) followPlans(ctx context.Context) error {
	var movers sync.WaitGroup
	defer movers.Wait()
	begin := sync.OnceFunc(func() {
		for range maxMoving {
			movers.Go(func() { p.move(ctx) })
		}
		movers.Go(func() { p.reportMoves(ctx) })
	})
	return dial.Connect(ctx, p.host.fleet.planner.address, p.host.proxyOptions(), dial.PausePlanner(300*time.Millisecond), func(ctx context.Context, conn *grpc.ClientConn) bool {
		client := api.NewPlansClient(conn)
		p.mu.Lock()
		p.client = client
		p.mu.Unlock()
		begin()
		return p.watch(ctx, client)
	})
}

// planner is where the planner is asked: over the connection of the present Watch, or the
// last.
func (p *proxy) planner() api.PlansClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// watch is one Watch; it reports whether all that is displaced was told.
func (p *proxy) watch(ctx context.Context, client api.PlansClient) (listed bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := &api.WatchRequest{Host: p.host.name()}
	p.mu.Lock()
	for _, c := range p.jobs {
		request.Runs = append(request.Runs, &api.Running{
			Job: c.job.name, Run: string(c.job.run), Servers: uint32(len(c.job.sets)), Store: c.store, Version: c.version, Used: true,
			CopyVersion: c.version, CopyMark: c.mark, Routed: true, Moves: []int32{int32(p.host.number)},
		})
	}
	p.mu.Unlock()
	var options []grpc.CallOption
	if !p.keepsOwners() {
		options = append(options, grpc.ForceCodecV2(versionCodec{encoding.GetCodecV2("proto")}))
	}
	stream, err := client.Watch(ctx, request, options...)
	if err != nil {
		p.host.noteNoPlans(err)
		return false
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			p.host.noteNoPlans(err)
			return listed
		}
		if e.GetListed() && e.GetJob() == "" {
			listed = true
			p.host.noteListed()
		}
		if e.GetMove() != nil && e.GetMove().GetFrom() == int32(p.host.number) {
			select {
			case p.moves <- e:
			case <-ctx.Done():
			}
		}
		p.applyEvent(e)
	}
}

// applyEvent takes what an event says of where keys are.
func (p *proxy) applyEvent(e *api.PlanEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.jobs[e.GetJob()]
	switch {
	case c == nil:
	case e.GetSnapshot() != nil:
		s := e.GetSnapshot()
		if s.GetFirst() {
			if c.owners != nil {
				*c.owners = plan.Owners{}
			}
		}
		c.set(s.GetDisplaced())
		if s.GetLast() {
			c.version, c.mark, c.store = s.GetVersion(), s.GetMark(), s.GetStores()[0]
		}
	case e.GetKept() != nil:
		c.store = e.GetKept().GetStores()[0]
	case e.GetChange() != nil:
		c.set(e.GetChange().GetDisplaced())
		c.version, c.mark = e.GetChange().GetVersion(), e.GetChange().GetMark()
	}
}

// set notes owners, where they are kept.
func (c *copied) set(d *api.Displaced) {
	if c.owners == nil {
		return
	}
	for i, first := range d.GetFirst() {
		r := plan.Range{Keys: plan.One(first), Owner: d.GetOwner()[min(i, len(d.GetOwner())-1)]}
		if len(d.GetLast()) > 0 {
			r.Last = d.GetLast()[i]
		}
		c.owners.Set(r)
	}
}

// version returns which version of a job's plan the proxy has.
func (p *proxy) version(job string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[job].version
}

// digest returns what stands for where all keys of a job are; ok is false where the
// proxy does not keep it.
func (p *proxy) digest(job string) (sum uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.jobs[job]
	if c.owners == nil {
		return 0, false
	}
	h := fnv.New64a()
	var b [20]byte
	for r := range c.owners.All() {
		binary.LittleEndian.PutUint64(b[:], r.First)
		binary.LittleEndian.PutUint64(b[8:], r.Last)
		binary.LittleEndian.PutUint32(b[16:], uint32(r.Owner))
		h.Write(b[:])
	}
	return h.Sum64(), true
}

// move carries moves out until ctx ends.
func (p *proxy) move(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-p.moves:
			for !p.host.fleet.begin() {
				if pause(ctx, 20*time.Millisecond) != nil {
					return
				}
			}
			p.moveBatch(ctx, e)
			p.host.fleet.end()
		}
	}
}

func (p *proxy) moveBatch(ctx context.Context, e *api.PlanEvent) {
	b := e.GetMove()
	p.mu.Lock()
	j := p.jobs[e.GetJob()].job
	p.mu.Unlock()
	report := &api.MoveReport{Host: p.host.name(), Job: e.GetJob(), Run: e.GetRun(), Batch: b.GetBatch(), Done: true}
	again := dial.PausePlanner(100 * time.Millisecond)
	for from := 0; from < len(b.GetFirst()); {
		until := min(from+moveKeys, len(b.GetFirst()))
		p.mu.Lock()
		c := p.jobs[e.GetJob()]
		r := &api.RecordRequest{Job: e.GetJob(), Run: e.GetRun(), Host: p.host.name(), Batch: b.GetBatch(), From: b.GetFrom(), To: b.GetTo(), First: b.GetFirst()[from:until], Store: c.store, Version: c.version}
		p.mu.Unlock()
		if len(b.GetLast()) > 0 {
			r.Last = b.GetLast()[from:until]
		}
		recorded, err := p.planner().Record(ctx, r)
		switch {
		case err == nil:
			j.note(r.GetFirst(), r.GetLast(), b.GetTo(), recorded.GetVersion())
			for i := range r.GetFirst() {
				n := uint64(1)
				if len(r.GetLast()) > 0 {
					n = r.GetLast()[i] - r.GetFirst()[i] + 1
				}
				report.MovedKeys, report.MovedBytes = report.GetMovedKeys()+n, report.GetMovedBytes()+n*(8+valueBytes)
			}
			from = until
		case (status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled) && ctx.Err() == nil: // it is not known whether it is recorded: said again
			if again.Wait(ctx) != nil {
				return
			}
		case ctx.Err() != nil:
			return
		default:
			report.Refused = append(report.GetRefused(), &api.Refusal{Reason: "elsewhere", Message: status.Convert(err).Message(), Keys: uint64(until - from), Example: r.GetFirst()[0]})
			from = until
		}
	}
	select {
	case p.done <- report:
	case <-ctx.Done():
	}
}

// reportMoves tells the planner which batches are done, until ctx ends: all that wait
// at a time, until it has heard them.
func (p *proxy) reportMoves(ctx context.Context) {
	var stream grpc.BidiStreamingClient[api.MoveReport, api.MoveTaken] // nil: it is to be opened
	for {
		var waiting []*api.MoveReport
		select {
		case r := <-p.done:
			waiting = append(waiting, r)
		case <-ctx.Done():
			return
		}
		for range len(p.done) {
			waiting = append(waiting, <-p.done)
		}
		again := dial.PausePlanner(100 * time.Millisecond)
		for tell(ctx, &stream, p.planner, waiting) != nil {
			stream = nil
			if again.Wait(ctx) != nil {
				return
			}
		}
	}
}

// tell sends reports and waits for the answers.
func tell(ctx context.Context, stream *grpc.BidiStreamingClient[api.MoveReport, api.MoveTaken], planner func() api.PlansClient, reports []*api.MoveReport) (err error) {
	if *stream == nil {
		if *stream, err = planner().Progress(ctx); err != nil {
			return err
		}
	}
	for _, r := range reports {
		if err := (*stream).Send(r); err != nil {
			return err
		}
	}
	for range reports {
		if _, err := (*stream).Recv(); err != nil {
			return err
		}
	}
	return nil
}
