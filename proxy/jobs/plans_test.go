package jobs

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/test/grpctest"
	"github.com/psidecar/psidecar/test/require"
)

// taker takes all reports.
type taker struct{ api.UnimplementedPlansServer }

func (taker) Progress(stream grpc.BidiStreamingServer[api.MoveReport, api.MoveTaken]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return nil
		}
		if err := stream.Send(&api.MoveTaken{}); err != nil {
			return err
		}
	}
}

// Nothing stays of a report that was sent, however many are: a proxy tells two a
// second for as long as keys move.
func TestReportsLeaveNothing(t *testing.T) {
	p := plans{client: api.NewPlansClient(grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlansServer(s, taker{}) }))}
	tell := func() {
		t.Helper()
		require.NoError(t, p.sendReports(t.Context(), []*api.MoveReport{{}, {}}))
	}
	tell()
	before := runtime.NumGoroutine()
	const times = 100
	for range times {
		tell()
	}
	require.Await(t, "goroutines end", func() error {
		if n := runtime.NumGoroutine(); n >= before+times/2 {
			return fmt.Errorf("%d after %d reports, %d before", n, times, before)
		}
		return nil
	})
}

// A batch that ended while nobody was watching is not in the list of the next Watch, and is not
// carried out. One that is goes on.
func TestWhatAWatchDoesNotListIsCanceled(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.jobs.plans.listed, x.used = true, true
	connect(t, x)
	p := x.jobs.plans
	hear := func(e *api.PlanEvent) {
		t.Helper()
		e.Job, e.Run, e.Servers = x.name, string(x.run), uint32(x.servers)
		require.NoError(t, p.applyEvent(e))
	}
	move := func(batch, key uint64) {
		t.Helper()
		hear(&api.PlanEvent{Event: &api.PlanEvent_Move{Move: &api.MoveBatch{Batch: batch, From: 0, To: 1, First: []uint64{key}}}})
	}
	x.notBefore = time.Now().Add(time.Hour) // it is busy with something else
	move(1, 7)
	move(2, 8)
	p.ended()
	p.beginCopies()
	move(2, 8)
	if len(x.work) != 2 {
		t.Fatalf("before all is listed %d groups wait, want 2", len(x.work))
	}
	require.NoError(t, p.applyEvent(&api.PlanEvent{Event: &api.PlanEvent_Listed{Listed: true}}))
	if len(x.work) != 1 || x.work[0].plan != 2 {
		t.Errorf("after the planner has listed batch 2 alone, %d groups wait: %+v", len(x.work), x.work)
	}
}

// deaf takes no report the first time.
type deaf struct {
	taker
	heard []*api.MoveReport
	calls int
}

func (d *deaf) Progress(stream grpc.BidiStreamingServer[api.MoveReport, api.MoveTaken]) error {
	if d.calls++; d.calls == 1 {
		return status.Error(codes.Unavailable, "later")
	}
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	d.heard = append(d.heard, r)
	return stream.Send(&api.MoveTaken{})
}

// A report that could not be sent is sent again: the planner would wait for the end of its batch for
// good.
func TestReportsAreRepeated(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	server := &deaf{}
	p := x.jobs.plans
	p.listed = true
	p.setClient(api.NewPlansClient(grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlansServer(s, server) })))
	x.locked(func() error {
		x.accept(&api.MoveBatch{Batch: 5, From: 0, To: 1, First: []uint64{7}})
		x.cancel(5)
		return nil
	})
	if err := p.report(t.Context()); err == nil {
		t.Fatal("a report that is not taken: no error")
	}
	require.NoError(t, p.report(t.Context()))
	if len(server.heard) != 1 || server.heard[0].GetBatch() != 5 || !server.heard[0].GetDone() {
		t.Errorf("the planner hears %v, want the end of batch 5", server.heard)
	}
	if err := p.report(t.Context()); err != nil || server.calls != 2 {
		t.Errorf("with nothing to report the planner is called: %d calls, %v", server.calls, err)
	}
}

// A refusal names some hosts, however many are silent.
func TestAFewHostsAreNamed(t *testing.T) {
	var hosts []string
	for i := range 3000 {
		hosts = append(hosts, fmt.Sprintf("10.128.%d.%d", i/256, i%256))
	}
	if got := someOf(hosts); len(got) > 200 || !strings.HasSuffix(got, " and 2992 more") {
		t.Errorf("%.300q", got)
	}
	if got, want := someOf([]string{"b", "a"}), "a, b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
