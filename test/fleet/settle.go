package main

import (
	"context"
	"fmt"
	"maps"

	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// settle has no keys move, and waits until all that were moving have and all proxies
// know of it. It returns what stands for where each job's keys are.
func (f *Fleet) settle(ctx context.Context) (map[string]uint64, error) {
	f.held.Store(true)
	if err := f.until(ctx, "the moves that were begun to be recorded", func() bool { return f.moving.Load() == 0 }); err != nil {
		return nil, err
	}
	// The answer has all plans: more than gRPC's 4 MiB while many keys move.
	d, err := f.hosts[0].proxy.planner().Describe(ctx, &api.DescribeRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		return nil, fmt.Errorf("reading the planner's plans: %w", err)
	}
	versions := map[string]uint64{} // nothing is recorded any more
	for _, p := range d.GetJobs() {
		versions[p.GetJob()] = p.GetVersion()
	}
	if err := f.until(ctx, "all proxies to know where keys are", func() bool {
		for _, j := range f.jobs {
			if f.least(j) != versions[j.name] {
				return false
			}
		}
		return true
	}); err != nil {
		return nil, err
	}
	sums, ok := f.agreed()
	whole, err := f.whole(ctx)
	if err != nil {
		return nil, err
	}
	if !ok || !maps.Equal(sums, whole) {
		return nil, fmt.Errorf("proxies that followed each change disagree with each other or with the planner about key owners: %x, %x", sums, whole)
	}
	return sums, nil
}

// begin reports whether moves may begin now; end says that they have ended.
func (f *Fleet) begin() bool {
	f.moving.Add(1)
	if f.held.Load() {
		f.moving.Add(-1)
		return false
	}
	return true
}

func (f *Fleet) end() { f.moving.Add(-1) }

// agreed returns the digests of the jobs' plans that all proxies have which keep
// them; ok is false where they differ.
func (f *Fleet) agreed() (sums map[string]uint64, ok bool) {
	sums = map[string]uint64{}
	for _, h := range f.hosts {
		for _, j := range f.jobs {
			sum, kept := h.proxy.digest(j.name)
			if before, known := sums[j.name]; kept && known && before != sum {
				return nil, false
			}
			if kept {
				sums[j.name] = sum
			}
		}
	}
	return sums, true
}

// whole returns the digests of the jobs' plans as a proxy has them that knew nothing and
// asks the planner now.
func (f *Fleet) whole(ctx context.Context) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.Patience)
	defer cancel()
	conn, err := grpc.NewClient(f.planner.address, f.hosts[0].proxyOptions()...)
	if err != nil {
		return nil, fmt.Errorf("reading the key owners from the planner: %w", err)
	}
	defer conn.Close()
	p := &proxy{host: f.hosts[0], jobs: map[string]*copied{}}
	request := &api.WatchRequest{Host: "fleet"}
	for _, j := range f.jobs {
		p.jobs[j.name] = &copied{job: j, owners: &plan.Owners{}}
		request.Runs = append(request.Runs, &api.Running{Job: j.name, Run: string(j.run), Servers: uint32(len(j.sets)), Used: true, Routed: true})
	}
	stream, err := api.NewPlansClient(conn).Watch(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("reading the key owners from the planner: %w", err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("reading the key owners from the planner: %w", err)
		}
		p.applyEvent(e)
		if e.GetListed() && e.GetJob() == "" {
			break
		}
	}
	sums := map[string]uint64{}
	for _, j := range f.jobs {
		sums[j.name], _ = p.digest(j.name)
	}
	return sums, nil
}
