package plans

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
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
	stream, err := c.Teach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(l); err != nil {
		t.Fatal(err)
	}
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
			told, next, stop := watch(t, api1, proxy)
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
			if err != nil || !strings.Contains(d.GetJobs()[0].GetLost(), "put the store back") {
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
			told, _, leave := watch(t, client(t, again), proxy)
			leave()
			if len(told) != 1 || told[0].GetSnapshot() == nil {
				t.Errorf("a proxy that has seen the store before is told %v", told)
			}
		})
	}
}

// A run of which nothing has moved needs no store that knows it.
func TestFreshRunAtAnotherStore(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	told, _, stop := watch(t, client(t, s), running(runs(1)[0]))
	defer stop()
	if len(told) != 1 || told[0].GetSnapshot() == nil {
		t.Errorf("told is %v", told)
	}
}

// site is a host in a model of moves: every host holds the keys, then it is
// recorded, then one host after the other lets go, in any order and with any of
// them dead meanwhile.
type site struct {
	owners map[uint64]int32
	held   map[uint64]bool
}

// However far moves have come when the store is lost, what the hosts teach gives
// owners that all who let go of a key agree with; as long as that is not certain
// the store waits.
func TestMergeOfLessons(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const keys, servers = 6, 3
		hosts := rapid.IntRange(1, 4).Draw(t, "hosts")
		sites := make([]site, hosts)
		for i := range sites {
			sites[i] = site{map[uint64]int32{}, map[uint64]bool{}}
		}
		// moving is a key's move: its new owner, and whether it was recorded.
		type moving struct {
			to       int32
			recorded bool
		}
		moves := map[uint64]*moving{}
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			k := rapid.Uint64Range(0, keys-1).Draw(t, "key")
			x := &sites[rapid.IntRange(0, hosts-1).Draw(t, "host")]
			m := moves[k]
			if m == nil {
				m = &moving{to: rapid.Int32Range(0, servers-1).Draw(t, "to")}
				moves[k] = m
			}
			all := true
			for i := range sites {
				all = all && sites[i].held[k]
			}
			switch {
			case !m.recorded && !x.held[k]:
				x.held[k] = true
			case !m.recorded && all:
				m.recorded = true
			case m.recorded && x.held[k]:
				x.owners[k] = m.to
				delete(x.held, k)
			}
			gone := m.recorded
			for i := range sites {
				gone = gone && !sites[i].held[k]
			}
			if gone {
				delete(moves, k)
			}
		}
		heard := rapid.SliceOfNDistinct(rapid.IntRange(0, hosts-1), 1, hosts, rapid.ID).Draw(t, "heard")
		l := &lost{lessons: map[string]*lesson{}}
		var names []string
		for i := range sites {
			names = append(names, fmt.Sprint("h", i))
		}
		for _, i := range heard {
			x := &lesson{sites: []string{names[i]}, allSites: names}
			for k, owner := range sites[i].owners {
				x.owners.Assign(plan.One(k), owner, servers)
			}
			for k := range sites[i].held {
				x.held.Set(plan.Range{Keys: plan.One(k)})
			}
			l.lessons[names[i]] = x
		}
		owners, waits := l.merge(servers)
		if len(waits) > 0 {
			if len(heard) == hosts {
				t.Fatalf("all have taught, and it waits for %v", waits)
			}
			return
		}
		for k := range uint64(keys) {
			for i := range sites {
				if sites[i].held[k] {
					continue // its requests wait, and it is told
				}
				want := plan.HomeOf(k, servers)
				if o, ok := sites[i].owners[k]; ok {
					want = o
				}
				got := owners.Owner(k)
				if got == plan.Home {
					got = plan.HomeOf(k, servers)
				}
				if got != want {
					t.Fatalf("key %d belongs to %d by the lessons of %v, host %d has let go of it to %d", k, got, heard, i, want)
				}
			}
		}
	})
}
