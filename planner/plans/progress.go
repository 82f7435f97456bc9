package plans

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

const (
	// maxReasons bounds the distinct reasons for refusals that are counted.
	maxReasons = 32
	// maxText is how many bytes of a reason or message are kept.
	maxText = 1024
)

// Progress implements api.PlansServer. Each report is acknowledged. Reports are cumulative, so a
// proxy may repeat one after a reconnect without harm. Those of hosts that do not take part in the run
// are ignored.
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
		// The report of a foreign host would end a batch whose keys have not moved. It is not
		// refused, since others of the stream may count. A host that is about to watch again is sent
		// its open batches again.
		if err := s.carries(r.GetHost(), runKey{r.GetJob(), plan.Run(r.GetRun())}); err != nil {
			s.foreign.Add(1)
			s.opts.Log.Debug("ignoring a report of moves", "batch", r.GetBatch(), "error", err)
		} else {
			s.Settle(context.WithoutCancel(stream.Context()), r)
		}
		if err := stream.Send(&api.MoveTaken{Job: r.GetJob(), Batch: r.GetBatch()}); err != nil {
			return err
		}
	}
}

// checkReport bounds the lists of a report, which is kept with the plan, and cuts its texts. A report
// that was refused for a long text would be missing: its batch, and so the plan, would never end.
func checkReport(r *api.MoveReport) error {
	if len(r.GetHeldMicros()) != len(r.GetHeldCount()) || len(r.GetHeldMicros()) > 4*heldBars {
		return fmt.Errorf("%d counts of %d durations", len(r.GetHeldCount()), len(r.GetHeldMicros()))
	}
	if len(r.GetRefused()) > maxReasons || len(r.GetHandlers()) > MaxServers {
		return fmt.Errorf("%d reasons, %d handlers", len(r.GetRefused()), len(r.GetHandlers()))
	}
	for _, f := range r.GetRefused() {
		f.Reason, f.Message = clip(f.GetReason()), clip(f.GetMessage())
	}
	for _, h := range r.GetHandlers() {
		h.Message = clip(h.GetMessage())
	}
	return nil
}

// clip cuts a text to at most maxText bytes.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("…")], "") + "…"
}

// Settle accepts one report, as Progress does. When a batch is done it opens the next ones of the
// same source server and ends the epoch after the last; of a command it puts the batch off if keys
// are left. Reports on a run, epoch or batch that is
// over are ignored: their proxy may not have heard yet.
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
	e.close(b)
	if e.commanded() && j.pending(b) {
		j.putOff(e, b)
	} else {
		e.countBatch(r.GetBatch())
	}
	j.openOf(b.GetFrom())
	j.endDone(ctx)
}
