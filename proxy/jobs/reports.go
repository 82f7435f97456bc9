package jobs

import (
	"context"
	"slices"
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
	all = append(p.unsent, all...)
	if len(all) == 0 {
		return nil
	}
	err := p.sendReports(ctx, all)
	p.unsent = nil
	if err != nil {
		p.unsent = newestOf(all)
	}
	return err
}

// newestOf returns the newest report of each batch, in order. Older ones add nothing, since figures
// are sums. They are not more than the planner has open batches.
func newestOf(all []*api.MoveReport) (newest []*api.MoveReport) {
	type key struct {
		job, run string
		batch    uint64
	}
	seen := map[key]bool{}
	for _, r := range slices.Backward(all) {
		if k := (key{r.GetJob(), r.GetRun(), r.GetBatch()}); !seen[k] {
			seen[k] = true
			newest = append(newest, r)
		}
	}
	slices.Reverse(newest)
	return newest
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

// reporting sends reports until ctx ends. Those that fail are sent again: a batch whose end the
// planner does not hear of is open for good.
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
