package report

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// servePlanner serves a store at the address until stopped.
func servePlanner(t *testing.T, address string, store *planner.ReportStore) (at string, stop func()) {
	t.Helper()
	l := require.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", address))(t)
	s := grpc.NewServer()
	api.RegisterPlannerServer(s, store)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return l.Addr().String(), func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// The planner goes away and comes back; the link takes up again, and the store
// has the newest report.
func TestReconnects(t *testing.T) {
	store := &planner.ReportStore{}
	address, stop := servePlanner(t, "127.0.0.1:0", store)
	made := uint64(0)
	l := New(address, "h1", insecure.NewCredentials(), func(Wanted) *api.HostReport {
		made++
		return &api.HostReport{Jobs: []*api.JobReport{{Job: "j:1", Bytes: made}}}
	}, func() bool { return false })
	l.SetEvery(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	require.Eventually(t, "reports go out", func() bool { return l.State().Reports > 10 })
	stop()
	require.Eventually(t, "the planner is gone", func() bool { s := l.State(); return !s.Connected && s.Error != "" })
	before := l.State().Reports
	again := &planner.ReportStore{}
	_, stop = servePlanner(t, address, again)
	require.Eventually(t, "reports go out again", func() bool { s := l.State(); return s.Connected && s.Reports > before+10 && s.Error == "" })
	cancel()
	<-ended
	stop()
	all := again.All()
	if len(all) != 1 || all[0].GetHost() != "h1" || all[0].GetJobs()[0].GetBytes() <= before {
		t.Errorf("the planner that came back has %v", all)
	}
}

// What is urgent does not wait until a report is due.
func TestUrgentReportsDoNotWait(t *testing.T) {
	store := &planner.ReportStore{}
	address, stop := servePlanner(t, "127.0.0.1:0", store)
	defer stop()
	var urgent atomic.Bool
	l := New(address, "h1", insecure.NewCredentials(), func(Wanted) *api.HostReport {
		urgent.Store(false)
		return &api.HostReport{}
	}, urgent.Load)
	l.SetEvery(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	for n := range uint64(3) {
		require.Eventually(t, "the next report goes out", func() bool { return l.State().Reports == n+1 })
		urgent.Store(true)
	}
	cancel()
	<-ended
}
