package plans

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// runs returns n runs of one job, one after the other.
func runs(n int) []plan.Run {
	var all []plan.Run
	last := plan.Run("")
	for range n {
		last = plan.NewRun(last, time.UnixMilli(1_700_000_000_000), 1)
		all = append(all, last)
	}
	return all
}

// watch begins a Watch that ends with stop, and returns what it tells until all
// is listed. More comes from next.
func watch(t *testing.T, s *Service, c api.PlansClient, carried ...*api.Running) (told []*api.PlanEvent, next func() *api.PlanEvent, stop func()) {
	t.Helper()
	return watchAs(t, s, c, rand.Text(), carried...)
}

// watchAs is watch by a host of that name.
func watchAs(t *testing.T, s *Service, c api.PlansClient, host string, carried ...*api.Running) (told []*api.PlanEvent, next func() *api.PlanEvent, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream := require.Value(c.Watch(ctx, &api.WatchRequest{Host: host, Runs: carried}))(t)
	next = func() *api.PlanEvent {
		t.Helper()
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("watching: %v", err)
		}
		return e
	}
	for {
		e := next()
		if e.GetListed() {
			break
		}
		told = append(told, e)
	}
	return told, next, func() {
		cancel()
		require.Eventually(t, "a proxy that has gone does not count as watching", func() bool { return !s.watchedBy(host) })
	}
}

func (s *Service) watchedBy(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if w.host == host {
			return true
		}
	}
	return false
}

func running(run plan.Run) *api.Running {
	return &api.Running{Job: testJob, Run: string(run), Servers: 2, Used: true}
}

func record(t *testing.T, c api.PlansClient, run plan.Run, key uint64) (uint64, error) {
	t.Helper()
	r, err := c.Record(t.Context(), &api.RecordRequest{Job: testJob, Run: string(run), From: 0, To: 1, First: []uint64{key}})
	return r.GetVersion(), err
}

// What one run has moved is nothing to the next: not in memory, and not when the
// planner has started over from its file.
func TestRunsAreApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.db")
	file, err := store.OpenFile(path)
	require.NoError(t, err)
	s := newService(t, file, Options{Act: true})
	c := client(t, s)
	r := runs(2)
	told, _, stop := watch(t, s, c, running(r[0]))
	if len(told) != 1 || told[0].GetRun() != string(r[0]) || len(told[0].GetSnapshot().GetDisplaced().GetFirst()) > 0 {
		t.Errorf("of a run that begins is told %v", told)
	}
	if number := propose(t, s, 2, target(7, 7, 1)); number != 1 {
		t.Fatalf("epoch %d", number)
	}
	require.Value(record(t, c, r[0], 7))(t)
	stop()

	told, _, stop = watch(t, s, c, running(r[1]))
	if len(told) != 1 || told[0].GetRun() != string(r[1]) || len(told[0].GetSnapshot().GetDisplaced().GetFirst()) > 0 {
		t.Errorf("the second run is told %v", told)
	}
	if s.Run(testJob) != r[1] {
		t.Errorf("the job's newest run is %s, want %s", s.Run(testJob), r[1])
	}
	if got := owners(s); len(got) > 0 {
		t.Errorf("the second run begins with %v displaced", got)
	}
	// The first run's planning, record and report come late.
	if number, err := s.Propose(t.Context(), Proposal{Job: testJob, Run: r[0], Servers: 2, Targets: []plan.Range{target(9, 9, 1)}}); number != 0 || err != nil {
		t.Errorf("a proposal for the first run is epoch %d of the second, %v", number, err)
	}
	if _, err := record(t, c, r[0], 8); err != nil {
		t.Error(err)
	}
	if got := owners(s); len(got) > 0 {
		t.Errorf("a record of the first run displaces %v in the second", got)
	}
	if _, err := record(t, c, plan.NewRun(r[1], time.Now(), 9), 8); status.Code(err) != codes.Unavailable {
		t.Errorf("a record of a run that nobody has named: %v", err)
	}
	if number := propose(t, s, 2, target(7, 7, 1)); number != 1 {
		t.Errorf("the second run's first plan is epoch %d", number)
	}
	s.Settle(t.Context(), &api.MoveReport{Job: testJob, Run: string(r[0]), Batch: 1 << 24, Done: true})
	if moving, _ := s.Busy(testJob); !moving {
		t.Error("a report of the first run ends a plan of the second")
	}
	require.Value(record(t, c, r[1], 7))(t)
	stop()
	require.NoError(t, file.Close())

	file = require.Value(store.OpenFile(path))(t)
	defer file.Close()
	again := newService(t, file, Options{Act: true})
	if again.id != s.id {
		t.Errorf("the store's id was %s and is %s", s.id, again.id)
	}
	if got, want := owners(again), []plan.Range{target(7, 7, 1)}; !slices.Equal(got, want) {
		t.Errorf("of the second run %v is displaced, want %v", got, want)
	}
	old, err := again.findRun(testJob, string(r[0]))
	if err != nil || old.owners.Keys() != 2 {
		t.Errorf("of the first run: %v", err)
	}
}

// A job that runs again and again leaves a bounded number of runs behind, and
// those that some proxy carries are there.
func TestOldRunsAreRemoved(t *testing.T) {
	memory := &store.Memory{}
	s := newService(t, memory, Options{Act: true})
	c := client(t, s)
	all := runs(4 * keepRuns)
	_, _, leave := watch(t, s, c, running(all[0]))
	for _, r := range all {
		_, _, stop := watch(t, s, c, running(r))
		require.Value(record(t, c, r, 7))(t)
		stop()
	}
	if n := s.countRuns(testJob); n > keepRuns+1 {
		t.Errorf("%d runs are kept, want about %d", n, keepRuns)
	}
	if _, err := s.findRun(testJob, string(all[0])); err != nil {
		t.Errorf("a run that a proxy carries: %v", err)
	}
	leave()
	stored := map[plan.Run]bool{}
	if err := memory.Each(t.Context(), func(name string, _ []byte) error {
		if k, _, ok := cutName(name); ok {
			stored[k.run] = true
		}
		return nil
	}); err != nil || len(stored) > keepRuns+2 {
		t.Errorf("%d runs are stored, %v", len(stored), err)
	}
	if s.Run(testJob) != all[len(all)-1] {
		t.Error("the newest run is gone")
	}
}

// A plan may come before the planner hears of its run from a proxy.
func TestPlanBeforeItsRunIsWatched(t *testing.T) {
	memory := &store.Memory{}
	r := runs(1)[0]
	number, err := newService(t, memory, Options{}).Propose(t.Context(), Proposal{Job: testJob, Run: r, Servers: 2, Targets: []plan.Range{target(9, 9, 1)}})
	if err != nil || number != 1 {
		t.Fatalf("epoch %d, %v", number, err)
	}
	s := newService(t, memory, Options{})
	if e := s.Epoch(testJob, number); s.Run(testJob) != r || e.GetState() != api.Epoch_PROPOSED || e.GetKeys() != 1 {
		t.Errorf("of run %s the store has %v", s.Run(testJob), e)
	}
}

// A new job finds room where many have ended.
func TestEndedJobsMakeRoom(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	for i, r := range runs(MaxJobs + 3) {
		if _, err := s.openRun(t.Context(), runKey{fmt.Sprintf("10.0.0.1:%d", i), r}, 2); err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
	}
	if len(s.jobs) > MaxJobs || len(s.runs) > MaxJobs {
		t.Errorf("%d jobs with %d runs", len(s.jobs), len(s.runs))
	}
}

// Nobody forgets where keys of a run are that goes on.
func TestForgetWhileKeysAreDisplaced(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	c := client(t, s)
	r := runs(1)[0]
	_, _, stop := watch(t, s, c, running(r))
	for key := range uint64(3) {
		require.Value(record(t, c, r, 5*key))(t)
	}
	forget := func() error {
		_, err := c.Act(t.Context(), &api.ActRequest{Job: testJob, Action: api.ActRequest_FORGET})
		return err
	}
	if err := forget(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "3 keys") || !strings.Contains(err.Error(), "psidecar restore") {
		t.Errorf("forgetting while keys are displaced: %v", err)
	}
	if got := owners(s); len(got) != 3 {
		t.Errorf("displaced is %v", got)
	}
	stop()
	// The run is over: its proxies remember it, and carry nothing.
	over := running(r)
	over.Used = false
	_, _, stop = watch(t, s, c, over)
	defer stop()
	if err := forget(); err != nil {
		t.Errorf("forgetting a run that is over: %v", err)
	}
	if _, err := s.find(testJob); status.Code(err) != codes.NotFound {
		t.Errorf("the job is still there: %v", err)
	}
}

// All runs together have a bound: a proxy can name any number of them.
func TestRunsHaveABound(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	all := runs(MaxRuns)
	for _, r := range all {
		require.Value(s.openRun(t.Context(), runKey{testJob, r}, 2))(t)
	}
	if _, err := s.openRun(t.Context(), runKey{"198.18.0.1:9001", all[0]}, 2); err == nil {
		t.Errorf("run %d is opened", MaxRuns+1)
	}
	if _, err := s.openRun(t.Context(), runKey{testJob, all[0]}, 2); err != nil {
		t.Errorf("a run that is known: %v", err)
	}
}

// A job whose name is like an entry of the store gets no plan: it could have the place of another
// job's.
func TestNamesLikeEntriesGetNoPlan(t *testing.T) {
	memory := &store.Memory{}
	s := newService(t, memory, Options{})
	run := runs(1)[0]
	for name, want := range map[string]bool{
		testJob + "/run/" + string(run): false, testJob + "/head/x": false, "a/log/0": false,
		"a/b:9000": true, "[fd00::1]:9000": true, testJob + "/run/1": true,
	} {
		_, err := s.Propose(t.Context(), Proposal{Job: name, Servers: 2, Targets: []plan.Range{target(7, 7, 1)}})
		if got := err == nil; got != want {
			t.Errorf("a plan for %q: %v", name, err)
		}
	}
	if err := memory.Each(t.Context(), func(name string, _ []byte) error {
		if k, _, ok := cutName(name); ok && k.job == testJob {
			t.Errorf("entry %s is taken for one of %s", name, testJob)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// However often a proxy names a server, it is sent each of its batches once.
func TestRepeatedServersGetMovesOnce(t *testing.T) {
	run := runs(1)[0]
	s := newService(t, &store.Memory{}, Options{Act: true})
	c := client(t, s)
	_, _, stop := watch(t, s, c, running(run))
	defer stop()
	propose(t, s, 2, target(7, 7, 1))
	again := running(run)
	again.Routed, again.Moves = true, []int32{0, 1, 0, 0}
	told, _, leave := watch(t, s, c, again)
	defer leave()
	moves := 0
	for _, e := range told {
		if e.GetMove() != nil {
			moves++
		}
	}
	if moves != 1 {
		t.Errorf("one batch is told %d times", moves)
	}
	again.Moves = make([]int32, MaxServers+1)
	stream := require.Value(c.Watch(t.Context(), &api.WatchRequest{Host: "h", Runs: []*api.Running{again}}))(t)
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a proxy with more servers than a job may have: %v", err)
	}
}
