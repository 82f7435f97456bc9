package plans

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"
)

const (
	// maxReasons bounds the distinct reasons for refusals that are counted.
	maxReasons = 32
	// maxText is how long a reason or message may be.
	maxText = 1024
)

// Progress implements api.PlansServer.
func (s *Service) Progress(stream grpc.BidiStreamingServer[api.MoveReport, api.MoveTaken]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkReport(r); err != nil {
			return status.Errorf(codes.InvalidArgument, "report of job %s, batch %d: %v", r.GetJob(), r.GetBatch(), err)
		}
		s.Settle(context.WithoutCancel(stream.Context()), r)
		if err := stream.Send(&api.MoveTaken{Job: r.GetJob(), Batch: r.GetBatch()}); err != nil {
			return err
		}
	}
}

// checkReport bounds the lists and texts of a report, which are kept with the plan.
func checkReport(r *api.MoveReport) error {
	if len(r.GetHeldMicros()) != len(r.GetHeldCount()) || len(r.GetHeldMicros()) > 4*heldBars {
		return fmt.Errorf("%d counts of %d durations", len(r.GetHeldCount()), len(r.GetHeldMicros()))
	}
	if len(r.GetRefused()) > maxReasons || len(r.GetHandlers()) > MaxServers {
		return fmt.Errorf("%d reasons, %d handlers", len(r.GetRefused()), len(r.GetHandlers()))
	}
	for _, f := range r.GetRefused() {
		if len(f.GetReason())+len(f.GetMessage()) > 2*maxText {
			return fmt.Errorf("a refusal in %d bytes of words", len(f.GetReason())+len(f.GetMessage()))
		}
	}
	for _, h := range r.GetHandlers() {
		if len(h.GetMessage()) > maxText {
			return fmt.Errorf("a handler in %d bytes of words", len(h.GetMessage()))
		}
	}
	return nil
}

// Settle keeps what a proxy reports, as Progress does. A report of a job or batch that is not there any more is of
// no use and no harm.
func (s *Service) Settle(ctx context.Context, r *api.MoveReport) {
	j, err := s.findRun(r.GetJob(), r.GetRun())
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range r.GetHandlers() {
		if h.GetServer() >= 0 && int(h.GetServer()) < j.servers {
			j.handler[h.GetServer()] = proto.CloneOf(h)
		}
	}
	e := j.moving
	if e == nil || r.GetBatch() == 0 {
		return
	}
	b := e.open[r.GetBatch()]
	if b == nil {
		return
	}
	e.reports[r.GetBatch()] = r
	if !r.GetDone() {
		return
	}
	e.countBatch(r.GetBatch())
	e.close(b)
	j.openOf(b.GetFrom())
	j.endDone(ctx)
}
