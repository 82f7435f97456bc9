package planner

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	return l
}

// start runs a planner on free ports until the test ends.
func start(t *testing.T, o Options) (*Planner, Options) {
	t.Helper()
	o.Reports, o.Front = listen(t), page.Server{Listener: listen(t), Guard: page.NewGuard()}
	o.Live = live.DefaultOptions
	p := require.Value(New(t.Context(), o))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p, o
}

func openStore(t *testing.T) store.Store {
	t.Helper()
	kept := require.Value(store.OpenFile(filepath.Join(t.TempDir(), "plans.db")))(t)
	return kept
}

// get returns what a planner's page answers.
func get(t *testing.T, o Options, path string) string {
	t.Helper()
	response := require.Value(http.Get("http://" + o.Front.Listener.Addr().String() + path))(t)
	defer response.Body.Close()
	text := require.Value(io.ReadAll(response.Body))(t)
	return string(text)
}

// The page has the plans, and the metrics know of them.
func TestPlanOnThePage(t *testing.T) {
	p, o := start(t, Options{Store: openStore(t)})
	_, err := p.Plans().Propose(t.Context(), plans.Proposal{Job: "198.18.0.1:9000", Servers: 2, Targets: []plan.Range{{Keys: plan.One(7), Owner: 1}}})
	require.NoError(t, err)
	var shown page.Plan
	require.NoError(t, json.Unmarshal([]byte(get(t, o, "/api/v1/plan?job=198.18.0.1:9000")), &shown))
	if len(shown.Epochs) != 1 || shown.Epochs[0].State != "proposed" || shown.Mode != "proposes" || shown.Strategy != "locality" {
		t.Errorf("the page has %+v", shown)
	}
	if text := get(t, o, "/metrics"); !strings.Contains(text, `psidecar_planner_epoch{job="198.18.0.1:9000"} 1`) {
		t.Errorf("metrics: %.2000s", text)
	}
}

// What an agent reports is what the page shows, and what the planner knows of hosts.
func TestReportOnThePage(t *testing.T) {
	p, o := start(t, Options{})
	conn := require.Value(grpc.NewClient(o.Reports.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	stream := require.Value(api.NewPlannerClient(conn).Report(t.Context(), grpc.WaitForReady(true)))(t)
	r := &api.HostReport{Host: "h1", Jobs: []*api.JobReport{{Job: "198.18.0.1:9000", State: page.Running}}}
	require.NoError(t, stream.Send(r))
	require.Value(stream.Recv())(t)
	if hosts := p.Reports().All(); len(hosts) != 1 || hosts[0].GetHost() != "h1" {
		t.Errorf("the planner knows %v", hosts)
	}
	var jobs page.Jobs
	if err := json.Unmarshal([]byte(get(t, o, "/api/v1/jobs")), &jobs); err != nil || len(jobs.Jobs) != 1 || jobs.Jobs[0].Name != "198.18.0.1:9000" || jobs.Jobs[0].State != page.Running {
		t.Errorf("the page has %+v, %v", jobs, err)
	}
}

// A planner that begins again with its store has the plans that it had.
func TestPlansOutliveThePlanner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.db")
	run := func(with func(*Planner)) {
		kept := require.Value(store.OpenFile(path))(t)
		p := require.Value(New(t.Context(), Options{Reports: listen(t), Store: kept, Live: live.DefaultOptions}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		with(p)
		cancel()
		require.NoError(t, <-ended)
	}
	run(func(p *Planner) {
		if _, err := p.Plans().Propose(t.Context(), plans.Proposal{Job: "j:1", Servers: 2, Targets: []plan.Range{{Keys: plan.One(7), Owner: 1}}}); err != nil {
			t.Fatal(err)
		}
	})
	run(func(p *Planner) {
		d, err := p.Plans().Describe(t.Context(), &api.DescribeRequest{Job: "j:1"})
		if err != nil || len(d.GetJobs()) != 1 {
			t.Errorf("after a restart: %v, %v", d, err)
		}
	})
}

// broken is a store that cannot be read.
type broken struct {
	store.Memory
	closed bool
}

var errBroken = errors.New("the disk is gone")

func (*broken) Each(context.Context, func(string, []byte) error) error { return errBroken }

func (b *broken) Close() error {
	b.closed = true
	return nil
}

// A store that cannot be read is named in the error, and closed.
func TestNewSaysWhichStore(t *testing.T) {
	var kept broken
	_, err := New(t.Context(), Options{Store: &kept, StoreName: "--store x.db", Live: live.DefaultOptions})
	if !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "--store x.db: ") || !kept.closed {
		t.Errorf("got %v, closed %v", err, kept.closed)
	}
	if _, err := New(t.Context(), Options{Live: live.Options{Strategy: "none that is known"}}); err == nil {
		t.Error("a strategy that nobody knows is taken")
	}
}

// A planner counts connections that have not identified themselves.
func TestSilentConnectionsAreCounted(t *testing.T) {
	policy := &control.Policy{}
	p, o := start(t, Options{Policy: policy})
	conn := require.Value(net.Dial("tcp", o.Reports.Addr().String()))(t)
	defer conn.Close()
	require.Eventually(t, "a connection is waited for", func() bool { return p.opening.Size() > 0 })
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(policy)
	families := require.Value(registry.Gather())(t)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "silent" {
					return
				}
			}
		}
	}
	t.Error("those that are reset for others are not among the metrics")
}
