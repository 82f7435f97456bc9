package live

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/grpctest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testJob = "198.18.0.1:9000"

// fleet is two hosts with a server and a worker each.
type fleet struct {
	planner *Planner
	service *plans.Service
	steps   uint64
}

func newFleet(t *testing.T, act bool, change func(*Options)) *fleet {
	t.Helper()
	service := require.Value(plans.New(t.Context(), &store.Memory{}, plans.Options{Act: act, Strategy: "locality"}))(t)
	o := DefaultOptions
	if change != nil {
		change(&o)
	}
	return &fleet{planner: New(service, o), service: service}
}

// report has a host's worker use keys, each once pulled and once pushed in each
// of ten steps.
func (f *fleet) report(host int, keys ...uint64) *api.HostReport {
	w := &api.Window{Keys: keys, ValueBytes: []uint32{4}, LastUnixNanos: int64(f.steps)}
	u := &api.WindowUse{Worker: fmt.Sprintf("worker%d", host), Steps: 10}
	for i := range keys {
		u.Keys, u.Pulls, u.Pushes = append(u.Keys, uint32(i)), append(u.Pulls, 10), append(u.Pushes, 10)
	}
	u.Pulled, u.Pushed = u.Keys, u.Keys
	w.Uses = []*api.WindowUse{u}
	return &api.HostReport{Host: fmt.Sprintf("h%d", host), Jobs: []*api.JobReport{{
		Job: testJob, Servers: 2, Workers: 2, Window: w,
		Nodes: []*api.Node{{Name: fmt.Sprintf("server%d", host), Role: "server", Rank: int32(host), Local: true}},
		Steps: []*api.Steps{{Worker: u.GetWorker(), Steps: f.steps}},
	}}}
}

// round is ten steps of both workers, and a decision.
func (f *fleet) round(ctx context.Context, first, second []uint64) {
	f.steps += 10
	f.planner.Take(f.report(0, first...))
	f.planner.Take(f.report(1, second...))
	f.planner.Decide(ctx)
}

// planClient is a client of the service.
func planClient(t *testing.T, s *plans.Service) api.PlansClient {
	t.Helper()
	return api.NewPlansClient(grpctest.Serve(t, func(server *grpc.Server) { api.RegisterPlansServer(server, s) }))
}

func (f *fleet) shown(t *testing.T) *api.JobPlan {
	t.Helper()
	d := require.Value(f.service.Describe(t.Context(), &api.DescribeRequest{Job: testJob}))(t)
	return d.GetJobs()[0]
}

// second is a key at home with server 1.
func second(n uint64) uint64 { return math.MaxUint64/2 + 1 + n }

// Keys at home with server 0 that only the other host's worker uses move there,
// as one range, and what was predicted comes true.
func TestPlansForReports(t *testing.T) {
	f := newFleet(t, true, nil)
	f.round(t.Context(), []uint64{1, 2, 3, second(1)}, []uint64{5, 6, 7, second(1), second(2)})
	p := f.shown(t)
	if len(p.GetEpochs()) != 1 {
		t.Fatalf("the plan is %v", p)
	}
	e := p.GetEpochs()[0]
	if e.GetState() != api.Epoch_MOVING || e.GetKeys() != 3 || e.GetRanges() != 1 || e.GetMigrationBytes() != 3*12 || !strings.HasPrefix(e.GetReason(), "h0 moves 128 bytes") {
		t.Errorf("the plan is %v", e)
	}
	require.Value(f.service.Record(t.Context(), &api.RecordRequest{Job: testJob, From: 0, To: 1, First: []uint64{5}, Last: []uint64{7}}))(t)
	f.done(t, e.GetEpoch(), 3)
	f.round(t.Context(), []uint64{1, 2, 3, second(1)}, []uint64{5, 6, 7, second(1), second(2)})
	e = f.shown(t).GetEpochs()[0]
	// Of 32 bytes a key and step, those of the key that both use are left.
	for _, h := range e.GetHosts() {
		if h.GetActual() != 32 || h.GetPredicted() >= h.GetBefore() {
			t.Errorf("%s: before %v, predicted %v, actual %v", h.GetHost(), h.GetBefore(), h.GetPredicted(), h.GetActual())
		}
	}
	if n := len(f.shown(t).GetEpochs()); n != 1 {
		t.Errorf("%d plans, the second moves %v", n, f.shown(t).GetEpochs())
	}
	f.service.View(testJob, func(w plans.Where) {
		o := w.Owners

		if o.Owner(6) != 1 || o.Owner(1) != plan.Home {
			t.Errorf("key 6 is with %d, key 1 with %d", o.Owner(6), o.Owner(1))
		}
	})
}

// Where values have different sizes, a key that was seen once stays: its first push
// may have been lost, and a pull must not have a server make it.
func TestKeysOfDifferentSizesMoveOnceSeenTwice(t *testing.T) {
	f := newFleet(t, true, nil)
	round := func() {
		f.steps += 10
		f.planner.Take(f.report(0, 1, 2, 3, second(1)))
		r := f.report(1, 5, 6, 7, second(1), second(2))
		r.Jobs[0].Window.ValueBytes = []uint32{4, 12, 0, 4, 4}
		f.planner.Take(r)
		f.planner.Decide(t.Context())
	}
	round()
	if all := f.shown(t).GetEpochs(); len(all) != 0 {
		t.Fatalf("planned for keys that were seen once: %v", all)
	}
	round()
	if all := f.shown(t).GetEpochs(); len(all) != 1 || all[0].GetKeys() != 3 {
		t.Errorf("planned for keys that were seen twice: %v, want a plan of 3 keys", all)
	}
}

// done reports the only batch of an epoch as done.
func (f *fleet) done(t *testing.T, number, moved uint64) {
	t.Helper()
	f.service.Settle(t.Context(), &api.MoveReport{Job: testJob, Batch: number << 24, MovedKeys: moved, Done: true})
	if e := f.service.Epoch(testJob, number); e.GetState() != api.Epoch_DONE {
		t.Fatalf("the plan is %v", e)
	}
}

// A planner that does not act keeps one proposal, the newest.
func TestDryRun(t *testing.T) {
	f := newFleet(t, false, nil)
	for range 5 {
		f.round(t.Context(), []uint64{1}, []uint64{5, 6})
	}
	if e := f.shown(t).GetEpochs(); len(e) != 1 || e[0].GetState() != api.Epoch_PROPOSED || e[0].GetKeys() != 2 {
		t.Errorf("plans are %v", e)
	}
}

// What all proxies refuse is not asked for again at once.
func TestRefused(t *testing.T) {
	f := newFleet(t, true, nil)
	f.round(t.Context(), []uint64{1}, []uint64{5})
	f.service.Settle(t.Context(), &api.MoveReport{Job: testJob, Batch: 1 << 24, Done: true,
		Refused: []*api.Refusal{{Reason: "handler", Message: "neither adds nor assigns", Keys: 1, Example: 5}}})
	f.round(t.Context(), []uint64{1}, []uint64{5})
	p := f.shown(t)
	if len(p.GetEpochs()) != 1 || !strings.Contains(p.GetTrouble(), "refused") {
		t.Errorf("plans are %v", p)
	}
	for range pardon {
		f.round(t.Context(), []uint64{1}, []uint64{5})
	}
	if n := len(f.shown(t).GetEpochs()); n != 2 {
		t.Errorf("%d plans a while later", n)
	}
}

func TestIncomplete(t *testing.T) {
	f := newFleet(t, true, nil)
	f.planner.Take(f.report(0, 1, 2))
	f.planner.Decide(t.Context())
	if got := f.shown(t).GetTrouble(); !strings.Contains(got, "servers 1 are unknown") {
		t.Errorf("with one host's report the trouble is %q", got)
	}
	// The job comes again with three servers.
	r := f.report(0, 1, 2)
	r.Jobs[0].Servers = 3
	f.planner.Take(r)
	f.planner.Decide(t.Context())
	if got := f.shown(t).GetTrouble(); !strings.Contains(got, "servers 1, 2 are unknown") {
		t.Errorf("with three servers the trouble is %q", got)
	}
}

func TestBounds(t *testing.T) {
	f := newFleet(t, false, func(o *Options) { o.MaxItems = 3 })
	f.round(t.Context(), []uint64{1, 2, 3, 4, 5}, []uint64{4, 5})
	if j := f.planner.jobs[testJob]; len(j.keys) != 3 || j.full != 4 {
		t.Errorf("%d keys, %d uses beyond", len(j.keys), j.full)
	}
}

func TestDPPA(t *testing.T) {
	f := newFleet(t, true, func(o *Options) { o.Strategy = "dppa" })
	var many []uint64
	for k := range uint64(40) {
		many = append(many, k)
	}
	f.round(t.Context(), []uint64{second(1)}, many) // all at home with server 0
	e := f.shown(t).GetEpochs()
	if len(e) != 1 || e[0].GetKeys() == 0 || e[0].GetKeys() > 20 {
		t.Errorf("plans are %v", e)
	}
}

func TestOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"strategy":     func(o *Options) { o.Strategy = "best" },
		"horizon":      func(o *Options) { o.Horizon = 0 },
		"interval 1ms": func(o *Options) { o.Every = time.Millisecond },
	} {
		o := DefaultOptions
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := DefaultOptions.Check(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, strategy := range []string{"off", "locality"} {
		o := DefaultOptions
		o.Strategy = strategy
		if err := New(nil, o).Run(ctx); err != nil {
			t.Error(err)
		}
	}
}

// However many names of workers agents report, so many of a job are followed.
func TestWorkersHaveABound(t *testing.T) {
	j := newJob(testJob, DefaultOptions)
	w := &api.Window{Keys: []uint64{1}}
	for i := range maxWorkers + 10 {
		w.Uses = append(w.Uses, &api.WindowUse{Worker: fmt.Sprint(i), Steps: 1, Keys: []uint32{0}, Pulls: []uint32{1}, Pushes: []uint32{0}})
	}
	j.take("h0", 0, &api.JobReport{Job: testJob, Servers: 2, Window: w})
	if len(j.workers) != maxWorkers || j.full != 10 {
		t.Errorf("%d workers are followed, %d uses are left out; want %d, 10", len(j.workers), j.full, maxWorkers)
	}
}
