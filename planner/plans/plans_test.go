package plans

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/grpctest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client serves s over gRPC in memory.
func client(t *testing.T, s *Service) api.PlansClient {
	t.Helper()
	return api.NewPlansClient(grpctest.Serve(t, func(server *grpc.Server) { api.RegisterPlansServer(server, s) }))
}

func newService(t *testing.T, s store.Store, o Options) *Service {
	t.Helper()
	service := require.Value(New(t.Context(), s, o))(t)
	return service
}

const testJob = "198.18.0.1:9000"

// target is a range with its owner.
func target(first, last uint64, owner int32) plan.Range {
	return plan.Range{Keys: plan.Keys{First: first, Last: last}, Owner: owner}
}

func propose(t *testing.T, s *Service, servers int, targets ...plan.Range) uint64 {
	t.Helper()
	e := require.Value(s.Propose(t.Context(), Proposal{Job: testJob, Servers: servers, Reason: "a test", Targets: targets,
		Hosts: []*api.HostLoad{{Host: "h0", Before: 100, Predicted: 50}}}))(t)
	return e
}

// proxy carries out every move that it hears of, in batches of keys, and
// refuses those in refuse.
type proxy struct {
	t      *testing.T
	client api.PlansClient
	refuse map[uint64]bool
	heard  []*api.PlanEvent
}

// work carries moves out until the condition is met.
func (p *proxy) work(until func(*api.JobPlan) bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	watch := require.Value(p.client.Watch(ctx, &api.WatchRequest{Host: "h0"}))(p.t)
	progress := require.Value(p.client.Progress(ctx))(p.t)
	events := make(chan *api.PlanEvent, 1024)
	go func() {
		defer close(events)
		for {
			e, err := watch.Recv()
			if err != nil {
				return
			}
			events <- e
		}
	}()
	for e := range events {
		p.heard = append(p.heard, e)
		if m := e.GetMove(); m != nil {
			p.move(ctx, e.GetJob(), m, progress)
		}
		d, err := p.client.Describe(ctx, &api.DescribeRequest{Job: testJob})
		if err == nil && d.GetJobs()[0].GetProxies() != 1 {
			p.t.Errorf("%d proxies are connected", d.GetJobs()[0].GetProxies())
		}
		if err == nil && until(d.GetJobs()[0]) {
			cancel()
		}
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		p.t.Fatal("it did not come to that")
	}
}

func (p *proxy) move(ctx context.Context, job string, m *api.MoveBatch, progress grpc.BidiStreamingClient[api.MoveReport, api.MoveTaken]) {
	p.t.Helper()
	report := &api.MoveReport{Host: "h0", Job: job, Batch: m.GetBatch(), Done: true, HeldMicros: []uint64{100}, HeldCount: []uint64{1}}
	request := &api.RecordRequest{Job: job, Host: "h0", Batch: m.GetBatch(), From: m.GetFrom(), To: m.GetTo()}
	for i, first := range m.GetFirst() {
		last := first
		if m.GetLast() != nil {
			last = m.GetLast()[i]
		}
		if p.refuse[first] {
			report.Refused = []*api.Refusal{{Reason: "handler", Message: "neither adds nor assigns", Keys: last - first + 1, Example: first}}
			continue
		}
		request.First, request.Last = append(request.First, first), append(request.Last, last)
		report.MovedKeys += last - first + 1
	}
	if _, err := p.client.Record(ctx, request); err != nil {
		p.t.Errorf("recording %v: %v", request, err)
	}
	if err := progress.Send(report); err != nil {
		p.t.Error(err)
	}
	if taken, err := progress.Recv(); err != nil || taken.GetBatch() != m.GetBatch() {
		p.t.Errorf("the report was answered with %v, %v", taken, err)
	}
}

func isDone(number uint64) func(*api.JobPlan) bool {
	return func(j *api.JobPlan) bool {
		for _, e := range j.GetEpochs() {
			if e.GetEpoch() == number {
				return e.GetState() == api.Epoch_DONE
			}
		}
		return false
	}
}

// owners lists all displaced keys as the service has them.
func owners(s *Service) []plan.Range {
	var all []plan.Range
	s.View(testJob, func(w Where) {
		o := w.Owners
		all = slices.Collect(o.All())
	})
	return all
}

// A plan is carried out by a proxy, survives the planner, is taken back and
// brought home.
func TestPlanIsCarriedOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.db")
	file := require.Value(store.OpenFile(path))(t)
	s := newService(t, file, Options{Act: true, Strategy: "locality"})
	first := propose(t, s, 4, target(10, 10, 3), target(20, 29, 2), target(5, 5, 0))
	if first != 1 {
		t.Fatalf("the first epoch is %d", first)
	}
	p := &proxy{t: t, client: client(t, s), refuse: map[uint64]bool{20: true}}
	p.work(isDone(first))
	if got, want := owners(s), []plan.Range{target(10, 10, 3)}; !slices.Equal(got, want) {
		t.Errorf("displaced is %v, want %v", got, want)
	}
	d := require.Value(s.Describe(t.Context(), &api.DescribeRequest{}))(t)
	e := d.GetJobs()[0].GetEpochs()[0]
	if e.GetMovedKeys() != 1 || e.GetKeys() != 11 || e.GetPendingKeys() != 0 || len(e.GetRefused()) != 1 || e.GetRefused()[0].GetKeys() != 10 {
		t.Errorf("the account says %v", e)
	}
	require.NoError(t, s.Measured(t.Context(), testJob, first, map[string]float64{"h0": 55}))
	second := propose(t, s, 4, target(10, 10, 1), target(11, 12, 1))
	p.work(isDone(second))
	require.NoError(t, file.Close())

	file = require.Value(store.OpenFile(path))(t)
	defer file.Close()
	s = newService(t, file, Options{Act: true})
	if got, want := owners(s), []plan.Range{target(10, 12, 1)}; !slices.Equal(got, want) {
		t.Errorf("after a restart displaced is %v, want %v", got, want)
	}
	d = require.Value(s.Describe(t.Context(), &api.DescribeRequest{Job: testJob}))(t)
	if hosts := d.GetJobs()[0].GetEpochs()[0].GetHosts(); len(hosts) != 1 || hosts[0].GetActual() != 55 {
		t.Errorf("after a restart the first plan's hosts are %v", hosts)
	}
	act := func(action api.ActRequest_Action) uint64 {
		t.Helper()
		a := require.Value(s.Act(t.Context(), &api.ActRequest{Action: action}))(t)
		return a.GetEpoch()
	}
	back := act(api.ActRequest_ROLLBACK)
	p = &proxy{t: t, client: client(t, s)}
	p.work(isDone(back))
	if got, want := owners(s), []plan.Range{target(10, 10, 3)}; !slices.Equal(got, want) {
		t.Errorf("taken back, displaced is %v, want %v", got, want)
	}
	if held := propose(t, s, 4, target(1, 1, 1)); held == 0 {
		t.Error("no plan")
	} else if moving, isHeld := s.Busy(testJob); moving || !isHeld {
		t.Error("after a plan was taken back, the next is carried out unasked")
	}
	p.work(isDone(act(api.ActRequest_APPLY)))
	p.work(isDone(act(api.ActRequest_RESTORE)))
	if got := owners(s); len(got) != 0 {
		t.Errorf("after all came home, displaced is %v", got)
	}
	act(api.ActRequest_FORGET)
	if _, err := s.Describe(t.Context(), &api.DescribeRequest{Job: testJob}); status.Code(err) != codes.NotFound {
		t.Errorf("a forgotten job: %v", err)
	}
	left := 0
	if err := file.Each(t.Context(), func(name string, _ []byte) error {
		if name != identityName {
			left++
		}
		return nil
	}); err != nil || left != 0 {
		t.Errorf("of a forgotten job %d entries are left, %v", left, err)
	}
}

// The snapshot is listed in pieces before listed comes, then the moves under way.
func TestWatchBeginsWithTheWhole(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	const n = 2*pieceRanges + 5
	targets := make([]plan.Range, n)
	for i := range targets {
		targets[i] = target(uint64(2*i), uint64(2*i), 1)
	}
	propose(t, s, 2, targets...)
	c := client(t, s)
	for i := 0; i < n; i += MaxRecord {
		r := &api.RecordRequest{Job: testJob, From: 0, To: 1}
		for _, k := range targets[i:min(i+MaxRecord, n)] {
			r.First = append(r.First, k.First)
		}
		require.Value(c.Record(t.Context(), r))(t)
	}
	p := &proxy{t: t, client: c}
	p.work(isDone(1))
	var got []plan.Range
	listed, last := false, false
	for _, e := range p.heard {
		switch {
		case e.GetSnapshot() != nil:
			ranges, err := rangesOf(e.GetSnapshot().GetDisplaced())
			if err != nil || listed || last || e.GetSnapshot().GetFirst() != (len(got) == 0) {
				t.Fatalf("snapshot piece %v, %v", e.GetSnapshot().GetVersion(), err)
			}
			got, last = append(got, ranges...), e.GetSnapshot().GetLast()
		case e.GetListed():
			listed = true
		case e.GetMove() != nil && listed && len(e.GetMove().GetFirst()) > batchRanges:
			t.Errorf("a batch of %d ranges", len(e.GetMove().GetFirst()))
		}
	}
	if !listed || !slices.Equal(got, targets) {
		t.Errorf("%d of %d ranges were listed (%v)", len(got), n, listed)
	}
}

func TestRecordRefuses(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	propose(t, s, 2, target(1, 1, 1))
	for name, tc := range map[string]struct {
		request *api.RecordRequest
		want    codes.Code
	}{
		"unknown job":       {&api.RecordRequest{Job: "x:1", To: 1, First: []uint64{1}}, codes.NotFound},
		"wrong owner":       {&api.RecordRequest{Job: testJob, From: 1, To: 0, First: []uint64{1, 2}}, codes.OK}, // it is there already
		"owner of a part":   {&api.RecordRequest{Job: testJob, From: 1, To: 1, First: []uint64{1}}, codes.FailedPrecondition},
		"no such server":    {&api.RecordRequest{Job: testJob, From: 0, To: 2, First: []uint64{1}}, codes.InvalidArgument},
		"keys that descend": {&api.RecordRequest{Job: testJob, To: 1, First: []uint64{4}, Last: []uint64{3}}, codes.InvalidArgument},
		"too many":          {&api.RecordRequest{Job: testJob, To: 1, First: make([]uint64, MaxRecord+1)}, codes.InvalidArgument},
		"keys that overlap": {&api.RecordRequest{Job: testJob, To: 1, First: make([]uint64, 100), Last: slices.Repeat([]uint64{1<<64 - 1}, 100)}, codes.InvalidArgument},
	} {
		if _, err := s.Record(t.Context(), tc.request); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if got := owners(s); len(got) != 0 {
		t.Errorf("displaced is %v", got)
	}
}

func TestProposeRefuses(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	propose(t, s, 2, target(1, 1, 1))
	require.Value(s.Record(t.Context(), &api.RecordRequest{Job: testJob, To: 1, First: []uint64{1}}))(t)
	for name, tc := range map[string]struct {
		p    Proposal
		want string
	}{
		"another size":   {Proposal{Job: testJob, Servers: 3}, "psidecar restore"},
		"no such server": {Proposal{Job: testJob, Servers: 2, Targets: []plan.Range{target(1, 1, 2)}}, "server 2 of 2"},
		"no job":         {Proposal{Servers: 2}, "host:port"},
		"no servers":     {Proposal{Job: "a:1"}, "0 servers"},
	} {
		if _, err := s.Propose(t.Context(), tc.p); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	if e := propose(t, s, 2, target(1, 1, 1), target(2, 2, 0)); e != 0 {
		t.Errorf("a plan that moves nothing has epoch %d", e)
	}
}

// A planner that forgets proposes, and moves nothing.
func TestForgetful(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true, Forgetful: true})
	propose(t, s, 2, target(1, 1, 1))
	if moving, _ := s.Busy(testJob); moving {
		t.Error("it moves keys")
	}
	if d, err := s.Describe(t.Context(), &api.DescribeRequest{}); err != nil || len(d.GetJobs()) != 1 || d.GetJobs()[0].GetActs() {
		t.Errorf("it says that it would: %v, %v", d, err)
	}
	if _, err := s.Act(t.Context(), &api.ActRequest{}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--store") {
		t.Errorf("asked to: %v", err)
	}
}

// One that does not read is given up, and others are not held up by it.
func TestSlowWatcher(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	propose(t, s, 2, target(1, 1, 1))
	w := &watcher{events: make(chan *told, watcherQueue)}
	require.Value(s.addWatcher(w))(t)
	for i := range watcherQueue + 10 {
		r := &api.RecordRequest{Job: testJob, From: int32(i % 2), To: int32((i + 1) % 2), First: []uint64{1}}
		require.Value(s.Record(t.Context(), r))(t)
	}
	n := 0
	for range w.events {
		n++
	}
	if n != watcherQueue || !w.slow {
		t.Errorf("%d events were kept for it", n)
	}
}

// What a job's owner asks for comes before what the planner does for all.
func TestOwnersWish(t *testing.T) {
	for _, c := range []struct {
		act  bool
		wish string
		want api.Epoch_State
	}{
		{true, "", api.Epoch_MOVING}, {true, "false", api.Epoch_PROPOSED}, {true, "true", api.Epoch_MOVING},
		{false, "", api.Epoch_PROPOSED}, {false, "true", api.Epoch_MOVING}, {false, "false", api.Epoch_PROPOSED},
	} {
		s := newService(t, &store.Memory{}, Options{Act: c.act, Wish: func(job string) string {
			if job != testJob {
				t.Errorf("it is asked for job %s", job)
			}
			return c.wish
		}})
		propose(t, s, 2, target(1, 5, 1))
		d, err := s.Describe(t.Context(), &api.DescribeRequest{})
		if err != nil || len(d.GetJobs()) != 1 || len(d.GetJobs()[0].GetEpochs()) != 1 {
			t.Fatalf("%+v: %v, %v", c, d, err)
		}
		if j := d.GetJobs()[0]; j.GetEpochs()[0].GetState() != c.want || j.GetActs() != (c.want == api.Epoch_MOVING) {
			t.Errorf("with act %v and wish %q it is %v, and acts: %v", c.act, c.wish, j.GetEpochs()[0].GetState(), j.GetActs())
		}
	}
}
