package jobs

import (
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/planner/api"
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
	p := plans{client: api.NewPlansClient(require.ServeInMemory(t, func(s *grpc.Server) { api.RegisterPlansServer(s, taker{}) }))}
	tell := func() {
		t.Helper()
		if err := p.sendReports(t.Context(), []*api.MoveReport{{}, {}}); err != nil {
			t.Fatal(err)
		}
	}
	tell()
	before := runtime.NumGoroutine()
	const times = 100
	for range times {
		tell()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n := runtime.NumGoroutine()
		if n < before+times/2 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines after %d reports, %d before", n, times, before)
		}
	}
}
