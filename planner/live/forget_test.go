package live

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/test/require"
)

// A job of many more keys than there is room for: keys that workers turn to late are
// planned for, and no more are held than there is room for.
func TestMoreKeysThanRoom(t *testing.T) {
	const room = 1 << 13
	f := newFleet(t, true, func(o *Options) { o.MaxItems = room })
	next, calls := uint64(1<<40), uint64(0)
	cold := func(n int) (keys []uint64) { // each comes twice, and never again
		if calls++; calls%4 == 3 {
			next -= 3 * uint64(2*n)
		}
		for range n {
			next += 3
			keys = append(keys, next)
		}
		return keys
	}
	for range 12 {
		f.round(t.Context(), cold(2000), cold(2000))
		if j := f.planner.jobs[testJob]; len(j.keys) > room || len(j.number) != len(j.keys) || len(j.used) != len(j.keys) || j.items.Len() != len(j.keys) {
			t.Fatalf("%d keys, %d numbers, %d times, %d items; room for %d", len(j.keys), len(j.number), len(j.used), j.items.Len(), room)
		}
		f.carryOut(t.Context(), t)
	}
	hot := []uint64{5, 6, 7}
	for range 6 {
		f.round(t.Context(), cold(1000), append(append([]uint64{}, hot...), cold(1000)...))
		f.carryOut(t.Context(), t)
	}
	j := f.planner.jobs[testJob]
	for _, key := range hot {
		item, ok := j.number[key]
		if !ok || j.keys[item] != key || j.hosts[j.items.Owner[item]] != "h1" {
			t.Errorf("key %d that h1 has used for long is not there: item %d, known %v", key, item, ok)
		}
	}
	for key, item := range j.number {
		if j.keys[item] != key {
			t.Fatalf("key %d is item %d, which is key %d", key, item, j.keys[item])
		}
	}
}

// carryOut has all moves of the newest plan made.
func (f *fleet) carryOut(ctx context.Context, t *testing.T) {
	t.Helper()
	epochs := f.shown(t).GetEpochs()
	if len(epochs) == 0 || epochs[len(epochs)-1].GetState() != api.Epoch_MOVING {
		return
	}
	client := planClient(t, f.service)
	watch := require.Value(client.Watch(ctx, &api.WatchRequest{Host: "h0"}))(t)
	for f.service.Epoch(testJob, epochs[len(epochs)-1].GetEpoch()).GetState() == api.Epoch_MOVING {
		e := require.Value(watch.Recv())(t)
		m := e.GetMove()
		if m == nil {
			continue
		}
		if _, err := f.service.Record(ctx, &api.RecordRequest{Job: testJob, From: m.GetFrom(), To: m.GetTo(), First: m.GetFirst(), Last: m.GetLast()}); err != nil {
			t.Fatal(err)
		}
		f.service.Settle(ctx, &api.MoveReport{Job: testJob, Batch: m.GetBatch(), MovedKeys: uint64(len(m.GetFirst())), Done: true})
	}
}

// Keys that come again are known, most that do not are not.
func TestDoor(t *testing.T) {
	var d door
	const keys = doorKeys / 4
	again, wrong := 0, 0
	for k := range uint64(keys) {
		if d.knows(k * 0x9e3779b9) {
			wrong++
		}
	}
	for k := range uint64(keys) {
		if d.knows(k * 0x9e3779b9) {
			again++
		}
	}
	if again != keys || wrong > keys/16 {
		t.Errorf("%d of %d keys are known again, %d before they came", again, keys, wrong)
	}
}

// What other jobs move on shared hosts counts in bytes of this one's steps; a job that
// is idle counts no more.
func TestJobsThatShareHosts(t *testing.T) {
	a, b := newJob("a", DefaultOptions), newJob("b", DefaultOptions)
	p := &Planner{jobs: map[string]*job{"a": a, "b": b}}
	a.hosts, a.machine = []string{"h0", "h1"}, map[string]int{"h0": 0, "h1": 1}
	b.hosts, b.machine = []string{"h1", "h2"}, map[string]int{"h1": 0, "h2": 1}
	for i, j := range []*job{a, b} { // ten and twenty steps a second
		j.pace.note(5, 1e9, nil)
		j.pace.note(10*float64(i+1), 2e9, []float64{100, 300})
		j.show()
	}
	if base := a.elsewhere(p.paces(a)); fmt.Sprint(base) != "[0 200]" {
		t.Errorf("beside job a its hosts move %v bytes a step", base)
	}
	if base := b.elsewhere(p.paces(b)); fmt.Sprint(base) != "[150 0]" {
		t.Errorf("beside job b its hosts move %v bytes a step", base)
	}
	b.idle = patience + 1
	b.show()
	if base := a.elsewhere(p.paces(a)); base != nil {
		t.Errorf("beside job a, with b idle, its hosts move %v bytes a step", base)
	}
}

// A host that joins while a job runs costs none of what is known.
func TestHostJoins(t *testing.T) {
	f := newFleet(t, false, nil)
	f.round(t.Context(), []uint64{1, 2, 3}, []uint64{second(1)})
	before := f.planner.jobs[testJob].strategy
	r := f.report(1, second(1))
	r.Host, r.Jobs[0].Nodes = "h2", nil
	f.planner.Take(r)
	f.round(t.Context(), []uint64{1, 2, 3}, []uint64{second(1)})
	j := f.planner.jobs[testJob]
	if len(j.hosts) != 3 || j.strategy != before || len(j.strategy.(*dynamic.Locality).Loads()) != 3 {
		t.Errorf("%d hosts; the strategy is another one: %v", len(j.hosts), j.strategy != before)
	}
}

// Keys that all hosts use stay, and people are told how much they are.
func TestKeysOfEverybody(t *testing.T) {
	e := &dynamic.Epoch{Steps: 1}
	for m := range int32(4) {
		e.Uses = append(e.Uses, dynamic.Use{Item: 0, Machine: m, Bytes: 75})
	}
	e.Uses = append(e.Uses, dynamic.Use{Item: 1, Machine: 2, Bytes: 100})
	if text := sharedKeys(e, 4); !strings.Contains(text, "1 keys used by most hosts are 75% of the bytes") {
		t.Errorf("people are told %q", text)
	}
	e.Uses[0].Bytes = 1000 // mostly one host's
	if text := sharedKeys(e, 4); text != "" {
		t.Errorf("of a key that is one host's people are told %q", text)
	}
	l := require.Value(DefaultOptions.strategy(4, nil, nil))(t)
	it := &dynamic.Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{12}}
	for round := range 20 {
		e := &dynamic.Epoch{Steps: 10, Base: make([]float64, 4)}
		for m := range int32(4) { // chance has now one, now another use it most
			e.Uses = append(e.Uses, dynamic.Use{Item: 0, Machine: m, Bytes: float32(1000 + 50*math.Sin(float64(round)+float64(m)))})
		}
		moves := require.Value(l.Plan(it, e))(t)
		for _, m := range moves {
			if round > 0 {
				t.Errorf("round %d: it moves to %d", round, m.To)
			}
			it.Owner[m.Item] = m.To
		}
	}
}
