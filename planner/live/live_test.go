package live

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
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
	service, err := plans.New(t.Context(), &store.Memory{}, plans.Options{Act: act, Strategy: "locality"})
	if err != nil {
		t.Fatal(err)
	}
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
	return api.NewPlansClient(require.ServeInMemory(t, func(server *grpc.Server) { api.RegisterPlansServer(server, s) }))
}

func (f *fleet) shown(t *testing.T) *api.JobPlan {
	t.Helper()
	d, err := f.service.Describe(t.Context(), &api.DescribeRequest{Job: testJob})
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := f.service.Record(t.Context(), &api.RecordRequest{Job: testJob, From: 0, To: 1, First: []uint64{5}, Last: []uint64{7}}); err != nil {
		t.Fatal(err)
	}
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
	if got := f.shown(t).GetTrouble(); !strings.Contains(got, "servers 1 are not known") {
		t.Errorf("with one host's report the trouble is %q", got)
	}
	// The job comes again with three servers.
	r := f.report(0, 1, 2)
	r.Jobs[0].Servers = 3
	f.planner.Take(r)
	f.planner.Decide(t.Context())
	if got := f.shown(t).GetTrouble(); !strings.Contains(got, "servers 1, 2 are not known") {
		t.Errorf("with three servers the trouble is %q", got)
	}
}

// A job comes again with fewer servers, on fewer hosts: what the others still
// report of the run before changes nothing.
func TestEndedRunElsewhere(t *testing.T) {
	f := newFleet(t, true, nil)
	old := f.report(2, 9)
	old.Jobs[0].Servers, old.Jobs[0].LastUnixNanos, old.Jobs[0].Window = 3, 7, nil
	old.Jobs[0].Nodes[0].Rank = 1
	f.planner.Take(old)
	first := f.report(0, 1)
	first.Jobs[0].LastUnixNanos = 99
	f.planner.Take(first)
	f.planner.Take(old) // whose host is not one of those that are known now
	at := int64(100)
	for range 3 {
		f.steps += 10
		for host, keys := range [][]uint64{{1, 2, 3, second(1)}, {5, 6, 7, second(1), second(2)}} {
			r := f.report(host, keys...)
			at++
			r.Jobs[0].LastUnixNanos = at
			f.planner.Take(r)
			f.planner.Take(old)
		}
		f.planner.Decide(t.Context())
	}
	p := f.shown(t)
	if p.GetTrouble() != "" || len(p.GetEpochs()) == 0 {
		t.Fatalf("nothing is planned: %v", p)
	}
	for _, h := range p.GetEpochs()[0].GetHosts() {
		if h.GetHost() == "h2" {
			t.Errorf("the plan counts with the host of the run before: %v", p)
		}
	}
}

// A job starts over with fewer servers, and nobody has named its run yet: the
// owners that are known are those of the run before, and one of them is no server.
// Nothing is planned, and the planner goes on.
func TestFewerServersThanOwners(t *testing.T) {
	f := newFleet(t, true, nil)
	f.round(t.Context(), []uint64{1, 2}, []uint64{5, 6, 7})
	if _, err := f.service.Record(t.Context(), &api.RecordRequest{Job: testJob, From: 0, To: 1, First: []uint64{5}, Last: []uint64{7}}); err != nil {
		t.Fatal(err)
	}
	f.done(t, f.shown(t).GetEpochs()[0].GetEpoch(), 3)
	for host, keys := range [][]uint64{{1}, {5, 8}} {
		r := f.report(host, keys...)
		r.Jobs[0].Servers, r.Jobs[0].LastUnixNanos = 1, 99
		if host > 0 {
			r.Jobs[0].Nodes = nil
		}
		f.planner.Take(r)
	}
	f.planner.Decide(t.Context())
	if p := f.shown(t); len(p.GetEpochs()) != 1 || p.GetTrouble() != otherServers {
		t.Errorf("%d plans, trouble %q", len(p.GetEpochs()), p.GetTrouble())
	}
}

// An agent that lags behind tells of the run before when the next has begun: those
// keys are unknown to its servers, and must not move.
func TestWindowOfTheRunBefore(t *testing.T) {
	f := newFleet(t, true, nil)
	j := newJob(testJob, DefaultOptions)
	j.follow(plan.NewRun("", time.Unix(1, 0), 11))
	j.follow(plan.NewRun(j.run, time.Unix(2, 0), 12))
	const began = 2e9
	for i, c := range []struct {
		table uint64
		first int64
		keys  int
	}{
		{11, began + 1, 0}, {12, began - 1, 1},
		// Of an agent that has not seen the table.
		{0, 0, 2}, {0, began - 1, 2}, {0, began, 3},
	} {
		r := f.report(0, uint64(i)).GetJobs()[0]
		r.NodeTable, r.Window.FirstUnixNanos = c.table, c.first
		j.addReport("h0", 0, r)
		if len(j.keys) != c.keys {
			t.Errorf("after a window of a run with table %d, first used at %d, keys %v are known, want %d", c.table, c.first, j.keys, c.keys)
		}
	}
	// What came to a planner that began after it, and was told of the next run later.
	j = newJob(testJob, DefaultOptions)
	j.addReport("h0", 0, f.report(0, 1).GetJobs()[0])
	if j.follow(plan.NewRun("", time.Unix(2, 0), 12)); len(j.keys) > 0 {
		t.Errorf("keys %v, seen before the run was named, are taken for its own", j.keys)
	}
}

// A worker that is not heard of is taken to go on as before, for a while: a key
// that it used stays, though all that is heard of now use it elsewhere.
func TestSilentWorker(t *testing.T) {
	f := newFleet(t, false, nil)
	f.round(t.Context(), []uint64{1, 5}, []uint64{5})
	if e := f.shown(t).GetEpochs(); len(e) > 0 {
		t.Fatalf("a key that both use alike moves: %v", e)
	}
	for i := range patience + 4 {
		f.steps += 10
		f.planner.Take(f.report(1, 5))
		f.planner.Decide(t.Context())
		if n := len(f.shown(t).GetEpochs()); n > 0 && i < patience || n == 0 && i == patience+3 {
			t.Errorf("%d plans after %d decisions without host 0", n, i+1)
		}
	}
}

// Where workers turn to other keys the planner does not wait for its next
// decision, and where keys are moving it decides when they have moved.
func TestReacts(t *testing.T) {
	f := newFleet(t, true, func(o *Options) { o.Every = time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.planner.Run(ctx) }()
	tell := func(shifted bool, second ...uint64) {
		f.steps += 10
		for host, keys := range [][]uint64{{1, 2}, second} {
			r := f.report(host, keys...)
			r.Jobs[0].Window.Shifted = shifted
			f.planner.Take(r)
		}
	}
	epochs := func(n int) []*api.Epoch {
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if d, err := f.service.Describe(ctx, &api.DescribeRequest{Job: testJob}); err == nil && len(d.GetJobs()[0].GetEpochs()) == n {
				return d.GetJobs()[0].GetEpochs()
			} else if time.Now().After(end) {
				t.Fatalf("%v, %v", d, err)
			}
		}
	}
	tell(false, 3, 4)
	time.Sleep(2 * gather)
	if d, err := f.service.Describe(ctx, &api.DescribeRequest{}); err != nil || len(d.GetJobs()) > 0 {
		t.Errorf("nobody shifted, and there is %v, %v", d, err)
	}
	tell(true, 5, 6)
	first := epochs(1)[0]
	if first.GetState() != api.Epoch_MOVING {
		t.Errorf("the plan is %v", first)
	}
	tell(true, 7, 8)
	time.Sleep(gather + 2*retry)
	epochs(1) // keys are moving
	f.done(t, first.GetEpoch(), first.GetKeys())
	epochs(2)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A plan with as many groups as it may have is followed by one with the others as soon as
// it is carried out; one that is only proposed is not.
func TestPlansGoOn(t *testing.T) {
	for _, act := range []bool{true, false} {
		f := newFleet(t, act, func(o *Options) { o.Every = time.Hour })
		tell := func() {
			f.steps += 10
			f.planner.Take(f.report(0, 1, second(2), second(3)))
			f.planner.Take(f.report(1, 5, 6, second(1)))
		}
		tell()
		f.planner.jobOf(testJob).judge.most = 1
		f.planner.Decide(t.Context())
		j := f.planner.jobs[testJob]
		if groups, more := j.strategy.(*dynamic.Locality).Groups(); groups != 1 || !more || j.turned() != act {
			t.Fatalf("act %v: the first plan has %d groups, %v; another follows: %v", act, groups, more, j.turned())
		}
		if !act {
			continue
		}
		first := f.shown(t).GetEpochs()[0]
		if waits, _ := f.planner.react(t.Context()); !waits {
			t.Error("while the first plan is carried out the second does not wait")
		}
		f.done(t, first.GetEpoch(), first.GetKeys())
		tell()
		f.planner.react(t.Context())
		if n := len(f.shown(t).GetEpochs()); n != 2 || j.turned() {
			t.Errorf("%d plans, another follows: %v", n, j.turned())
		}
	}
}

// Jobs that are decided at the same time get the plans that each gets alone.
func TestJobsTogetherAreDecidedAsAlone(t *testing.T) {
	const jobs = 5
	name := func(job int) string { return fmt.Sprintf("198.18.%d.1:9000", job) }
	tell := func(f *fleet, job int) {
		for host, keys := range [][]uint64{{1, second(uint64(job)), second(9)}, {2, uint64(3 + job), second(8)}} {
			r := f.report(host, keys...)
			r.Host = fmt.Sprintf("h%d-%d", job, host)
			r.Jobs[0].Job = name(job)
			f.planner.Take(r)
		}
	}
	plan := func(f *fleet, job int) (keys uint64, reason string, loads []string) {
		d, err := f.service.Describe(t.Context(), &api.DescribeRequest{Job: name(job)})
		if err != nil || len(d.GetJobs()[0].GetEpochs()) != 1 {
			t.Fatalf("job %d: %v, %v", job, d, err)
		}
		e := d.GetJobs()[0].GetEpochs()[0]
		for _, h := range e.GetHosts() {
			loads = append(loads, fmt.Sprint(h.GetBefore(), h.GetPredicted()))
		}
		return e.GetKeys(), e.GetReason(), loads
	}
	together := newFleet(t, false, nil)
	together.steps = 10
	for job := range jobs {
		tell(together, job)
	}
	together.planner.Decide(t.Context())
	for job := range jobs {
		alone := newFleet(t, false, nil)
		alone.steps = 10
		tell(alone, job)
		alone.planner.Decide(t.Context())
		keys, reason, loads := plan(alone, job)
		if k, r, l := plan(together, job); k != keys || r != reason || !slices.Equal(l, loads) {
			t.Errorf("job %d: %d keys, %s, %v; alone %d, %s, %v", job, k, r, l, keys, reason, loads)
		}
	}
}

// Decisions for workers that turned, however many, do not have one be taken for silent.
func TestDecisionsThatHurryWaitForTheOthers(t *testing.T) {
	f := newFleet(t, false, nil)
	f.round(t.Context(), []uint64{1, 5}, []uint64{5})
	for range 3 * patience {
		f.steps += 10
		r := f.report(1, 5)
		r.Jobs[0].Window.Shifted = true
		f.planner.Take(r)
		if _, took := f.planner.react(t.Context()); took == 0 {
			t.Fatal("nothing was decided")
		}
	}
	if e := f.shown(t).GetEpochs(); len(e) > 0 {
		t.Errorf("a key that both use alike moves: %v", e)
	}
}

// Jobs that were decided a moment ago are left out of a regular decision.
func TestRegularDecisionsLeaveOutWhatWasDecided(t *testing.T) {
	f := newFleet(t, false, nil)
	f.round(t.Context(), []uint64{1}, []uint64{2})
	j := f.planner.jobOf(testJob)
	turn, round := j.turn, j.round
	f.planner.Take(f.report(1, 5))
	f.planner.decideBefore(t.Context(), j.decided.Add(-time.Nanosecond))
	if j.turn != turn || j.round != round+1 {
		t.Errorf("after a decision another one is made: %d, %d rounds", j.turn-turn, j.round-round)
	}
	f.planner.decideBefore(t.Context(), j.decided)
	if j.turn != turn+1 || j.round != round+2 {
		t.Errorf("long after a decision %d are made in %d rounds", j.turn-turn, j.round-round)
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
		"every 1ms: w": func(o *Options) { o.Every = time.Millisecond },
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
