package live

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// Uses are those that adding them up by item and machine gives, in that order, however
// often a list was merged and renumbered.
func TestUsesOf(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		items, steps := 1+random.IntN(50), 1+10*random.Float64()
		type place struct{ item, machine int32 }
		want := map[place]float64{}
		var workers []*worker
		for machine := range 5 {
			for range random.IntN(3) {
				w := &worker{machine: machine, wasSteps: 1 + random.Uint64N(9)}
				for range random.IntN(200) {
					item, bytes := int32(random.IntN(items)), float32(1+random.IntN(1000))
					w.was.addUse(item, bytes)
					if random.IntN(50) == 0 {
						w.was.merge()
					}
					want[place{item, int32(machine)}] += float64(bytes) * steps / float64(w.wasSteps)
				}
				workers = append(workers, w)
			}
		}
		uses := usesOf(workers, items, steps)
		got := map[place]float64{}
		for i, u := range uses {
			if i > 0 && !(uses[i-1].Item < u.Item || uses[i-1].Item == u.Item && uses[i-1].Machine < u.Machine) {
				t.Fatalf("%+v comes before %+v", uses[i-1], u)
			}
			got[place{u.Item, u.Machine}] = float64(u.Bytes)
		}
		for at, bytes := range want {
			if math.Abs(got[at]-bytes) > 1e-5*bytes {
				t.Fatalf("%+v has %v bytes, want %v", at, got[at], bytes)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d uses, want %d", len(got), len(want))
		}
	}
}

// Of a worker that turns to other keys only what it tells from then on counts, however
// its windows and the decisions fall: uses are those of its windows since the last
// decision from the last one on that says so, in the mean of their steps.
func TestWorkersThatTurnForgetWhatTheyTold(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	j := newJob(testJob, DefaultOptions)
	j.restart(1)
	j.machine["h"], j.hosts, j.links = 0, []string{"h"}, []uint32{0}
	var told []*api.Window // since the last decision
	turned := 0
	for range 2000 {
		w := &api.Window{Shifted: random.IntN(4) == 0, ValueBytes: []uint32{8}}
		u := &api.WindowUse{Worker: "w", Steps: 1 + random.Uint32N(9)}
		for key := range uint64(6) {
			if random.IntN(2) == 0 {
				u.Keys = append(u.Keys, uint32(len(w.Keys)))
				w.Keys = append(w.Keys, key)
				u.Pulls, u.Pushes = append(u.Pulls, random.Uint32N(5)), append(u.Pushes, 1)
			}
		}
		w.Uses = []*api.WindowUse{u}
		j.see("h", w)
		if told = append(told, w); random.IntN(3) > 0 {
			continue
		}
		e, want, steps := j.epoch(), map[uint64]float64{}, 0.0
		for i := len(told) - 1; i >= 0; i-- {
			u := told[i].GetUses()[0]
			steps += float64(u.GetSteps())
			for at, n := range u.GetKeys() {
				want[told[i].GetKeys()[n]] += float64(u.GetPulls()[at])*(2*8+8) + 8 + 8
			}
			if told[i].GetShifted() {
				if i > 0 {
					turned++
				}
				break
			}
		}
		if told = nil; e.Steps != steps || len(e.Uses) != len(want) {
			t.Fatalf("%d uses in %v steps, want %d in %v", len(e.Uses), e.Steps, len(want), steps)
		}
		for _, u := range e.Uses {
			if bytes := want[j.keys[u.Item]]; math.Abs(float64(u.Bytes)-bytes) > 1e-5*bytes {
				t.Fatalf("key %d has %v bytes, want %v", j.keys[u.Item], u.Bytes, bytes)
			}
		}
	}
	if turned < 100 {
		t.Errorf("workers turned after they had told of other keys %d times only", turned)
	}
}

// A key of a window that a worker neither pulled nor pushed was not used.
func TestKeysWithoutPullsAndPushesAreNoUses(t *testing.T) {
	j := newJob(testJob, DefaultOptions)
	j.restart(1)
	j.machine["h"], j.hosts, j.links = 0, []string{"h"}, []uint32{0}
	use := &api.WindowUse{Worker: "w", Steps: 1, Keys: []uint32{0, 1}, Pulls: []uint32{0, 3}, Pushes: []uint32{0, 0}}
	j.see("h", &api.Window{Keys: []uint64{1, 2}, ValueBytes: []uint32{8}, Uses: []*api.WindowUse{use}})
	if e := j.epoch(); len(e.Uses) != 1 || j.keys[e.Uses[0].Item] != 2 {
		t.Errorf("uses are %+v, want one of key 2", e.Uses)
	}
}

// Items that a machine has left are those that it used before, where they were most of
// what it did, and that none of its workers uses now.
func TestDepartures(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	turned := 0
	for range 500 {
		var workers []*worker
		var left []dynamic.Departure
		const items, machines = 40, 3
		uses := [machines][items]bool{}
		want := map[dynamic.Departure]bool{}
		for range 6 {
			w := &worker{machine: random.IntN(machines), wasSteps: 1}
			before, now := map[int32]float32{}, map[int32]bool{}
			for range random.IntN(30) {
				item, bytes := int32(random.IntN(items)), float32(1+random.IntN(9))
				w.seen.addUse(item, bytes)
				before[item] += bytes
			}
			for range random.IntN(30) {
				item := int32(random.IntN(items))
				w.was.addUse(item, 1)
				now[item], uses[w.machine][item] = true, true
			}
			all, gone := float32(0), float32(0)
			for item, bytes := range before {
				if all += bytes; !now[item] {
					gone += bytes
				}
			}
			for item := range before {
				if gone > all/2 && !now[item] {
					want[dynamic.Departure{Item: item, Machine: int32(w.machine)}] = true
				}
			}
			left = w.appendDepartures(left)
			workers = append(workers, w)
		}
		slices.SortStableFunc(workers, func(a, b *worker) int { return a.machine - b.machine })
		for d := range want {
			if uses[d.Machine][d.Item] {
				delete(want, d)
			}
		}
		got := unused(left, usesOf(workers, items, 1))
		for i, d := range got {
			if !want[d] || i > 0 && !(got[i-1].Item < d.Item || got[i-1].Item == d.Item && got[i-1].Machine < d.Machine) {
				t.Fatalf("%+v has left, after %+v; want %v", d, got[max(i-1, 0)], want)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d have left, want %v", len(got), want)
		}
		turned += len(got)
	}
	if turned == 0 {
		t.Error("none has left")
	}
}

// A list of uses is bounded by how many items there are.
func TestUseListIsBounded(t *testing.T) {
	var l useList
	for i := range 1 << 20 {
		l.addUse(int32(i%100), 1)
	}
	if len(l.all) > 200+compactFrom {
		t.Errorf("%d uses of 100 items", len(l.all))
	}
	l.merge()
	sum := 0.0
	for _, u := range l.all {
		sum += float64(u.bytes)
	}
	if sum != 1<<20 || len(l.all) != 100 {
		t.Errorf("%v bytes of %d items", sum, len(l.all))
	}
	number := make([]int32, 100)
	for i := range number {
		number[i] = int32(i/2)*int32(1-i%2) - int32(i%2) // the even ones stay
	}
	l.renumber(number)
	if len(l.all) != 50 || l.all[49].item != 49 {
		t.Errorf("%d items stay, the last is %+v", len(l.all), l.all[len(l.all)-1])
	}
}

// Where items are is the same whether only what has changed is looked at, or all: keys
// move and come home, singly and as ranges, new keys and servers' hosts come.
func TestPlaceFollowsChanges(t *testing.T) {
	const servers = 4
	random := rand.New(rand.NewPCG(3, 4))
	service := require.Value(plans.New(t.Context(), &store.Memory{}, plans.Options{Strategy: "locality"}))(t)
	service.Trouble(t.Context(), testJob, servers, "") // opens the job
	newOne := func() *job {
		j := newJob(testJob, DefaultOptions)
		j.restart(servers)
		for rank := range j.serves {
			name := string(rune('a' + rank))
			j.hosts, j.serves[rank], j.machine[name] = append(j.hosts, name), name, rank
		}
		return j
	}
	j := newOne()
	home := func(n uint64) uint64 { return plan.HomeRange(int32(n%servers), servers).First + n/servers }
	followed := 0
	for round := range 400 {
		for range random.IntN(4) {
			j.item(home(random.Uint64N(400)), 0)
		}
		for range random.IntN(3) {
			first := home(random.Uint64N(400))
			var now plan.Range
			service.View(testJob, func(w plans.Where) {
				for r := range w.Owners.Resolved(plan.Keys{First: first, Last: first + random.Uint64N(3)}, servers) {
					now = r
					break
				}
			})
			if _, err := service.Record(t.Context(), &api.RecordRequest{Job: testJob, From: now.Owner, To: int32(random.IntN(servers)), First: []uint64{now.First}, Last: []uint64{now.Last}}); err != nil {
				t.Fatal(err)
			}
		}
		if random.IntN(40) == 0 {
			a, b := random.IntN(servers), random.IntN(servers)
			j.serves[a], j.serves[b] = j.serves[b], j.serves[a]
		}
		if random.IntN(3) > 0 {
			continue // several changes are followed at once
		}
		all := newOne()
		copy(all.serves, j.serves)
		for _, key := range j.keys {
			all.item(key, 0)
		}
		service.View(testJob, func(w plans.Where) {
			if changes, ok := w.Since(j.placed.version, j.placed.mark); ok && len(changes) > 0 {
				followed++
			}
			j.place(w)
			all.place(w)
		})
		if diff := cmp.Diff(all.items, j.items); diff != "" {
			t.Fatalf("round %d: all looked at (-), followed (+):\n%s", round, diff)
		}
	}
	if followed < 50 {
		t.Errorf("changes were followed %d times only", followed)
	}
}

// While one job is decided, reports of others are taken.
func TestReportsAreTakenWhileAnotherJobIsDecided(t *testing.T) {
	service := require.Value(plans.New(t.Context(), &store.Memory{}, plans.Options{Strategy: "locality"}))(t)
	p := New(service, DefaultOptions)
	report := func(job string) *api.HostReport {
		return &api.HostReport{Host: "a", Jobs: []*api.JobReport{{Job: job, Servers: 2, LastUnixNanos: 1, Window: &api.Window{
			Keys: []uint64{1}, Uses: []*api.WindowUse{{Worker: "w", Steps: 1, Keys: []uint32{0}, Pulls: []uint32{1}, Pushes: []uint32{1}}},
		}}}}
	}
	p.Take(report("decided"))
	decided := p.jobOf("decided")
	decided.mu.Lock() // as a decision does
	p.Take(report("other"))
	decided.mu.Unlock()
	if n := len(p.jobOf("other").keys); n != 1 {
		t.Errorf("%d keys are known of the other job", n)
	}
}

// Plans that take long get fewer groups, until they take as long as they may, and more
// again where they take little.
func TestPlansTakeAsLongAsTheyMay(t *testing.T) {
	var u judge
	for _, rate := range []float64{3000, 1e6, 20} { // groups a second
		for range 10 {
			u.learn(u.bound(), time.Duration(float64(u.bound())/rate*1e9))
		}
		got, want := u.bound(), max(min(int(planTakes.Seconds()*rate), mostGroups), fewGroups)
		if got < want/2 || got > want {
			t.Errorf("at %v groups a second a plan has %d, want %d or half of it", rate, got, want)
		}
	}
	u = judge{most: 5000}
	if u.learn(10, time.Millisecond); u.bound() != 5000 {
		t.Errorf("a small plan that took little has the next one have %d groups", u.bound())
	}
	if u.learn(fewGroups, time.Minute); u.bound() != 5000 {
		t.Errorf("a small plan that took long has the next one have %d groups", u.bound())
	}
}
