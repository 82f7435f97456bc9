package plans

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// lesson is what a host without moves under way teaches.
func lessonOf(run plan.Run, seen string, version uint64, displaced ...plan.Range) *api.Lesson {
	l := &api.Lesson{Job: testJob, Run: string(run), Servers: 2, Store: seen, Version: version, Sites: []string{"h0"}, AllSites: []string{"h0", "h1"}, Displaced: &api.Displaced{}}
	for _, r := range displaced {
		l.Displaced.First, l.Displaced.Last, l.Displaced.Owner = append(l.Displaced.First, r.First), append(l.Displaced.Last, r.Last), append(l.Displaced.Owner, r.Owner)
	}
	return l
}

func teach(t *testing.T, c api.PlansClient, l *api.Lesson) (*api.Taught, error) {
	t.Helper()
	stream := require.Value(c.Teach(t.Context()))(t)
	require.NoError(t, stream.Send(l))
	return stream.CloseAndRecv()
}

// A store that is new, or an old copy, does not pass for the one that proxies
// have seen: it tells nobody where keys are, and records nothing, until it has
// been taught.
func TestLostStore(t *testing.T) {
	r := runs(1)[0]
	for _, c := range []struct {
		name    string
		seen    func(id string) string
		version uint64
	}{
		{"another store", func(string) string { return "the store before" }, 5},
		{"an old copy", func(id string) string { return id }, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			memory := &store.Memory{}
			s := newService(t, memory, Options{Act: true})
			api1 := client(t, s)
			proxy := running(r)
			proxy.Store, proxy.Version = c.seen(s.id), c.version
			told, next, stop := watch(t, s, api1, proxy)
			defer stop()
			if len(told) != 1 || told[0].GetLost() == nil {
				t.Fatalf("told is %v, want that the store is lost", told)
			}
			if _, err := record(t, api1, r, 3); status.Code(err) != codes.Unavailable {
				t.Errorf("a record: %v", err)
			}
			if _, err := s.Propose(t.Context(), Proposal{Job: testJob, Servers: 2, Targets: []plan.Range{target(9, 9, 1)}}); err == nil {
				t.Error("a plan is made")
			}
			if _, err := api1.Act(t.Context(), &api.ActRequest{Job: testJob, Action: api.ActRequest_RESTORE}); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("restore: %v", err)
			}
			d, err := api1.Describe(t.Context(), &api.DescribeRequest{Job: testJob})
			if err != nil || !strings.Contains(d.GetJobs()[0].GetLost(), "restore the store") {
				t.Errorf("it is described as %v, %v", d, err)
			}
			taught, err := teach(t, api1, lessonOf(r, proxy.GetStore(), c.version, target(7, 7, 1), target(20, 29, 1)))
			if err != nil || !taught.GetDone() {
				t.Fatalf("taught: %v, %v", taught, err)
			}
			snapshot, listed := next(), next()
			if got := snapshot.GetSnapshot(); got.GetVersion() <= c.version || !slices.Contains(got.GetStores(), proxy.GetStore()) || len(got.GetDisplaced().GetFirst()) != 2 {
				t.Errorf("then is told %v", snapshot)
			}
			if !listed.GetListed() || listed.GetRun() != string(r) {
				t.Errorf("and %v", listed)
			}
			if version, err := record(t, api1, r, 3); err != nil || version <= c.version {
				t.Errorf("then a record has version %d, %v", version, err)
			}
			// What was taught is in the store, with what it goes on from.
			again := newService(t, memory, Options{Act: true})
			want := []plan.Range{target(3, 3, 1), target(7, 7, 1), target(20, 29, 1)}
			if got := owners(again); !slices.Equal(got, want) {
				t.Errorf("in the store is %v, want %v", got, want)
			}
			told, _, leave := watch(t, again, client(t, again), proxy)
			leave()
			if len(told) != 1 || told[0].GetSnapshot() == nil {
				t.Errorf("a proxy that has seen the store before is told %v", told)
			}
		})
	}
}

// A report of moves counts only if it is of a host whose proxy watches the run: another one cannot
// end a plan whose keys have not moved.
func TestForeignHostEndsNoPlan(t *testing.T) {
	both := runs(2)
	old, run := both[0], both[1]
	s := newService(t, &store.Memory{}, Options{Act: true})
	c := client(t, s)
	_, _, stop := watchAs(t, s, c, "h0", running(run))
	defer stop()
	_, _, leave := watchAs(t, s, c, "h1", running(old)) // the job's run before
	defer leave()
	if number := propose(t, s, 2, target(7, 7, 1)); number != 1 {
		t.Fatalf("epoch %d", number)
	}
	stream := require.Value(c.Progress(t.Context()))(t)
	report := func(host string) {
		t.Helper()
		require.NoError(t, stream.Send(&api.MoveReport{Host: host, Job: testJob, Run: string(run), Batch: 1 << 24, Done: true}))
		if _, err := stream.Recv(); err != nil {
			t.Fatalf("a report of %s: %v", host, err)
		}
	}
	for _, host := range []string{"h1", "nobody"} {
		report(host)
		if moving, _ := s.Busy(testJob); !moving {
			t.Fatalf("a report of %s ends the plan", host)
		}
	}
	if n := s.foreign.Load(); n != 2 {
		t.Errorf("%d foreign reports are counted, want 2", n)
	}
	report("H0")
	if moving, _ := s.Busy(testJob); moving {
		t.Error("the plan goes on after the report of the run's own host")
	}
}

// A host has a say in where keys of a run are only while its proxy watches that
// run: another one neither teaches the store nor records a move, whatever it calls
// itself.
func TestForeignHostHasNoSay(t *testing.T) {
	both := runs(2)
	old, run := both[0], both[1]
	s := newService(t, &store.Memory{}, Options{Act: true})
	c := client(t, s)
	seen := running(run)
	seen.Store, seen.Version = "the store before", 5
	_, next, stop := watchAs(t, s, c, "h0", seen)
	defer stop()
	_, _, leave := watchAs(t, s, c, "h1", running(old)) // the job's run before
	defer leave()
	lesson := func(host string, keys ...plan.Range) *api.Lesson {
		l := lessonOf(run, "the store before", 5, keys...)
		l.Host = host
		return l
	}
	for _, host := range []string{"h1", "nobody"} {
		if taught, err := teach(t, c, lesson(host, target(7, 7, 1))); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a lesson of %s: %v, %v", host, taught, err)
		}
	}
	if taught, err := teach(t, c, lesson("H0", target(3, 3, 1))); err != nil || !taught.GetDone() {
		t.Fatalf("a lesson of the run's own host: %v, %v", taught, err)
	}
	next()
	next()
	record := func(host string) error {
		_, err := c.Record(t.Context(), &api.RecordRequest{Job: testJob, Run: string(run), Host: host, From: 0, To: 1, First: []uint64{9}})
		return err
	}
	for _, host := range []string{"h1", "nobody"} {
		if err := record(host); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "watch") {
			t.Errorf("a record of %s: %v", host, err)
		}
	}
	if err := record("h0"); err != nil {
		t.Errorf("a record of the run's own host: %v", err)
	}
	if got, want := owners(s), []plan.Range{target(3, 3, 1), target(9, 9, 1)}; !slices.Equal(got, want) {
		t.Errorf("in the store is %v, want %v", got, want)
	}
}

// The first that a new store hears of a run may be a record, or of a proxy that
// has seen nothing: the record waits all the same.
func TestRecordBeforeTheStoreIsTaught(t *testing.T) {
	r := runs(1)[0]
	s := newService(t, &store.Memory{}, Options{Act: true})
	c := client(t, s)
	late := func() error {
		_, err := c.Record(t.Context(), &api.RecordRequest{Job: testJob, Run: string(r), From: 0, To: 1, First: []uint64{7}, Store: "the store before", Version: 3})
		return err
	}
	if err := late(); status.Code(err) != codes.Unavailable {
		t.Errorf("before anybody watches: %v", err)
	}
	_, next, stop := watch(t, s, c, running(r))
	defer stop()
	if err := late(); status.Code(err) != codes.Unavailable {
		t.Errorf("when only a host watches that has seen nothing: %v", err)
	}
	if e := next(); e.GetLost() == nil {
		t.Errorf("then is told %v", e)
	}
	if taught, err := teach(t, c, lessonOf(r, "the store before", 3)); err != nil || !taught.GetDone() {
		t.Fatal(taught, err)
	}
	if err := late(); err != nil {
		t.Errorf("when it has been taught: %v", err)
	}
}

// A host that has seen no store adds none to what the run goes on from.
func TestLessonOfAHostWithoutAStore(t *testing.T) {
	r := runs(1)[0]
	s := newService(t, &store.Memory{}, Options{Act: true})
	c := client(t, s)
	seen := running(r)
	seen.Store, seen.Version = "the store before", 5
	_, next, stop := watch(t, s, c, seen)
	defer stop()
	if taught, err := teach(t, c, lessonOf(r, "", 0)); err != nil || !taught.GetDone() {
		t.Fatal(taught, err)
	}
	if got, want := next().GetSnapshot().GetStores(), []string{s.id, "the store before"}; !slices.Equal(got, want) {
		t.Errorf("the run goes on from %q, want %q", got, want)
	}
}

// A run of which nothing has moved needs no store that knows it.
func TestFreshRunAtAnotherStore(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	told, _, stop := watch(t, s, client(t, s), running(runs(1)[0]))
	defer stop()
	if len(told) != 1 || told[0].GetSnapshot() == nil {
		t.Errorf("told is %v", told)
	}
}

// Whatever proxies say that they have seen, a lost run remembers the newest stores only.
func TestStoresOfALostRunAreBounded(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	j := newJob(s, runKey{testJob, runs(1)[0]}, 2)
	for i := range 10 * maxStores {
		j.lose(fmt.Sprint("store ", i), 1)
		j.lose(fmt.Sprint("store ", i), 1)
	}
	j.lose(strings.Repeat("s", maxStoreID+1), 7)
	if last := j.lost.stores[len(j.lost.stores)-1]; len(j.lost.stores) != maxStores || last != fmt.Sprint("store ", 10*maxStores-1) || j.lost.version != 7 {
		t.Errorf("%d stores are remembered, the last one is %.20q, of version %d", len(j.lost.stores), last, j.lost.version)
	}
}
