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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs a planner on free ports until the test ends.
func start(t *testing.T, o Options) (*Planner, Options) {
	t.Helper()
	o.Reports, o.Front = listen(t), page.Server{Listener: listen(t), Guard: page.NewGuard()}
	o.Live = live.DefaultOptions
	p, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for p.Plans() == nil && len(ended) == 0 {
		time.Sleep(time.Millisecond)
	}
	return p, o
}

func openStore(t *testing.T) store.Store {
	t.Helper()
	kept, err := store.OpenFile(filepath.Join(t.TempDir(), "plans.db"))
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

// get returns what a planner's page answers.
func get(t *testing.T, o Options, path string) string {
	t.Helper()
	response, err := http.Get("http://" + o.Front.Listener.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page has the plans, and the metrics know of them.
func TestPlanOnThePage(t *testing.T) {
	p, o := start(t, Options{Store: openStore(t)})
	_, err := p.Plans().Propose(t.Context(), plans.Proposal{Job: "198.18.0.1:9000", Servers: 2, Targets: []plan.Range{{Keys: plan.One(7), Owner: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	var shown page.Plan
	if err := json.Unmarshal([]byte(get(t, o, "/api/v1/plan?job=198.18.0.1:9000")), &shown); err != nil {
		t.Fatal(err)
	}
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
	conn, err := grpc.NewClient(o.Reports.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := api.NewPlannerClient(conn).Report(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	r := &api.HostReport{Host: "h1", Jobs: []*api.JobReport{{Job: "198.18.0.1:9000", State: page.Running}}}
	if err := stream.Send(r); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
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
		kept, err := store.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(t.Context(), Options{Reports: listen(t), Store: kept, Live: live.DefaultOptions})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		for p.Plans() == nil && len(ended) == 0 {
			time.Sleep(time.Millisecond)
		}
		with(p)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
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
	conn, err := net.Dial("tcp", o.Reports.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for end := time.Now().Add(time.Minute); p.opening.Size() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no connection is waited for")
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(policy)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
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
