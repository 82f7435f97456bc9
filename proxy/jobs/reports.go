package jobs

import (
	"context"
	"time"

	"github.com/psidecar/psidecar/planner/api"
)

// report sends the planner what has become of its batches.
func (p *plans) report(ctx context.Context) error {
	if !p.connected() {
		return nil
	}
	var all []*api.MoveReport
	for _, x := range p.jobs.allJobs() {
		x.mu.Lock()
		all = append(all, x.reports()...)
		x.mu.Unlock()
	}
	if len(all) == 0 {
		return nil
	}
	return p.sendReports(ctx, all)
}

// tellWithin bounds the time in which the planner takes reports.
const tellWithin = 30 * time.Second

// sendReports sends reports over a stream of their own, each confirmed, and ends the stream.
func (p *plans) sendReports(ctx context.Context, all []*api.MoveReport) error {
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel() // what keeps a stream goes with it
	stream, err := p.planner().Progress(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := stream.Send(r); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	return stream.CloseSend()
}

// batchDone has a batch reported at once: the planner then sends the next.
func (p *plans) batchDone() {
	select {
	case p.done <- struct{}{}:
	default:
	}
}

// reporting sends reports until ctx ends. A report that fails is lost; the planner then finds out
// from its store what has been recorded.
func (p *plans) reporting(ctx context.Context) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-p.done:
		}
		if err := p.report(ctx); err != nil {
			p.jobs.log.Debug("reporting moves to the planner", "error", err)
		}
	}
}
