package plans

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

var testRun = plan.NewRun("", time.UnixMilli(1700000000000), 1)

// carrying is what a proxy says of the test's run, with the copy that it has.
func carrying(version, mark uint64, moves ...int32) *api.WatchRequest {
	return &api.WatchRequest{Host: "h0", Runs: []*api.Running{{Job: testJob, Run: string(testRun), Servers: 8, Used: true, CopyVersion: version, CopyMark: mark, Routed: len(moves) > 0, Moves: moves}}}
}

// join returns a watcher of the service and its first events.
func join(t *testing.T, s *Service, r *api.WatchRequest) (*watcher, []*told) {
	t.Helper()
	w := &watcher{host: r.GetHost(), runs: map[runKey]*api.Running{}, events: make(chan *told, watcherQueue)}
	for _, running := range r.GetRuns() {
		s.beginRun(t.Context(), running)
		w.runs[runKey{running.GetJob(), plan.Run(running.GetRun())}] = running
	}
	first := require.Value(s.addWatcher(w))(t)
	return w, first
}

func recordKeys(t *testing.T, s *Service, from, to int32, keys ...uint64) uint64 {
	t.Helper()
	r := require.Value(s.Record(t.Context(), &api.RecordRequest{Job: testJob, Run: string(testRun), From: from, To: to, First: keys}))(t)
	return r.GetVersion()
}

// kinds says what events are.
func kinds(events []*told) (all []string) {
	for _, e := range events {
		switch {
		case e.GetSnapshot() != nil:
			all = append(all, "snapshot")
		case e.GetKept() != nil:
			all = append(all, fmt.Sprint("kept ", e.GetKept().GetVersion()))
		case e.GetChange() != nil:
			all = append(all, fmt.Sprint("change ", e.GetChange().GetVersion()))
		case e.GetMove() != nil:
			all = append(all, fmt.Sprint("move from ", e.GetMove().GetFrom()))
		case e.GetListed():
			all = append(all, "listed")
		}
	}
	return all
}

// A proxy that comes back gets the changes that its copy lacks, from the same
// planner and from one that was restarted. One whose copy is of another history, as
// after a store was restored, gets a snapshot.
func TestProxyThatComesBack(t *testing.T) {
	kept := &store.Memory{}
	s := newService(t, kept, Options{})
	_, first := join(t, s, carrying(0, 0))
	if got := kinds(first); !slices.Equal(got, []string{"snapshot", "listed"}) {
		t.Fatalf("one without a copy is told %v", got)
	}
	marks := map[uint64]uint64{}
	w, _ := join(t, s, carrying(0, 0))
	for i := range uint64(4) {
		recordKeys(t, s, 0, 1, 10+i)
	}
	for range 4 {
		c := (<-w.events).GetChange()
		marks[c.GetVersion()] = c.GetMark()
	}
	for name, service := range map[string]*Service{"the same planner": s, "one started again": newService(t, kept, Options{})} {
		for _, c := range []struct {
			version, mark uint64
			want          []string
		}{
			{4, marks[4], []string{"kept 4", "listed"}},
			{2, marks[2], []string{"kept 2", "change 3", "change 4", "listed"}},
			{2, marks[3], []string{"snapshot", "listed"}},
			{9, marks[4], []string{"snapshot", "listed"}},
			{0, 0, []string{"snapshot", "listed"}},
		} {
			if _, first := join(t, service, carrying(c.version, c.mark)); !slices.Equal(kinds(first), c.want) {
				t.Errorf("%s: one with version %d is told %v, want %v", name, c.version, kinds(first), c.want)
			}
		}
	}
}

// Changes are kept for proxies that come back, up to a bound; after a snapshot was
// written its version is one to go on from.
func TestRecentChangesHaveABound(t *testing.T) {
	var r recent
	r.reset(5, 55)
	for v := uint64(6); v < 40; v++ {
		r.addChange(newTold(&api.PlanEvent{Event: &api.PlanEvent_Change{Change: &api.Change{Version: v, Mark: 11 * v}}}), recentRanges/8)
		sum := 0
		for _, c := range r.changes {
			sum += c.ranges
		}
		if sum != r.ranges || sum > recentRanges {
			t.Fatalf("%d ranges are kept, %d are counted, at most %d may be", sum, r.ranges, recentRanges)
		}
		if events, ok := r.since(r.after, r.mark); !ok || len(events) != len(r.changes) || r.mark != 11*r.after {
			t.Fatalf("after version %d: %d of %d changes", r.after, len(events), len(r.changes))
		}
	}
	if _, ok := r.since(5, 55); ok {
		t.Error("what was forgotten is said to be known")
	}
	kept := &store.Memory{}
	s := newService(t, kept, Options{})
	s.logSlack = -1 // a snapshot each time
	w, _ := join(t, s, carrying(0, 0))
	recordKeys(t, s, 0, 1, 10)
	c := (<-w.events).GetChange()
	if _, first := join(t, newService(t, kept, Options{}), carrying(c.GetVersion(), c.GetMark())); !slices.Equal(kinds(first), []string{"kept 1", "listed"}) {
		t.Errorf("after a snapshot one is told %v", kinds(first))
	}
}

// Moves go to the watchers that make them, and to those that do not name the
// servers whose moves they make. A new watcher gets the open ones that are its own.
func TestMovesGoToTheirMakers(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	mine, _ := join(t, s, carrying(0, 0, 0))
	others, _ := join(t, s, carrying(0, 0, 1))
	every, _ := join(t, s, carrying(0, 0))
	each := plan.HomeRange(1, 8).First
	if _, err := s.Propose(t.Context(), Proposal{Job: testJob, Run: testRun, Servers: 8, Targets: []plan.Range{target(1, 1, 3), target(each, each, 3), target(2*each, 2*each, 3)}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		w    *watcher
		want []string
	}{
		"mover of 0":    {mine, []string{"move from 0"}},
		"mover of 1":    {others, []string{"move from 1"}},
		"mover unknown": {every, []string{"move from 0", "move from 1", "move from 2"}},
	} {
		var got []*told
		for len(c.w.events) > 0 {
			got = append(got, <-c.w.events)
		}
		if !slices.Equal(kinds(got), c.want) {
			t.Errorf("%s hears of %v, want %v", name, kinds(got), c.want)
		}
	}
	if _, first := join(t, s, carrying(0, 0, 1)); !slices.Equal(kinds(first), []string{"snapshot", "move from 1", "listed"}) {
		t.Errorf("a mover that comes hears of %v", kinds(first))
	}
	if _, first := join(t, s, carrying(0, 0, 2, 0)); !slices.Equal(kinds(first), []string{"snapshot", "move from 2", "move from 0", "listed"}) {
		t.Errorf("the first mover of 2 hears of %v", kinds(first))
	}
}

// With keys that go from each server to all others, few between two, a proxy has
// many batches at a time, and no more than are bounded.
func TestManySmallBatches(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	w, _ := join(t, s, carrying(0, 0, 0))
	var targets []plan.Range
	for i := range uint64(500) {
		targets = append(targets, target(3*i, 3*i, int32(1+i%7)))
	}
	for i := range uint64(4 * openRanges) { // those to the last one fill many batches
		targets = append(targets, target(10_000+3*i, 10_000+3*i, 7))
	}
	require.Value(s.Propose(t.Context(), Proposal{Job: testJob, Run: testRun, Servers: 8, Targets: targets}))(t)
	told, open, ranges, most := 0, map[uint64]*api.MoveBatch{}, 0, 0
	for {
		for len(w.events) > 0 {
			m := (<-w.events).GetMove()
			open[m.GetBatch()] = m
			told++
			ranges += len(m.GetFirst())
			if len(open) > openBatches || len(open) > 1 && ranges > openRanges {
				t.Fatalf("%d batches of %d ranges are open", len(open), ranges)
			}
		}
		most = max(most, len(open))
		if len(open) == 0 {
			break
		}
		for number, m := range open {
			delete(open, number)
			ranges -= len(m.GetFirst())
			s.Settle(t.Context(), &api.MoveReport{Job: testJob, Run: string(testRun), Batch: number, Done: true})
			break
		}
	}
	if most < 4 {
		t.Errorf("%d batches at a time", most)
	}
	if e := s.Epoch(testJob, 1); e.GetState() != api.Epoch_DONE || told < 7 {
		t.Errorf("%d batches were told, the plan is %v", told, e.GetState())
	}
}

// With many proxies Records that come close together are one change, and each is
// right.
func TestRecordsForManyProxies(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	var watchers []*watcher
	for range 2 * restFrom {
		w, _ := join(t, s, carrying(0, 0))
		watchers = append(watchers, w)
	}
	const records = 400
	var g sync.WaitGroup
	for i := range uint64(records) {
		g.Go(func() { recordKeys(t, s, 0, int32(1+i%7), 2*i) })
	}
	g.Wait()
	changes := 0
	o := &plan.Owners{}
	for len(watchers[0].events) > 0 {
		ranges := require.Value(rangesOf((<-watchers[0].events).GetChange().GetDisplaced()))(t)
		for _, r := range ranges {
			o.Set(r)
		}
		changes++
	}
	if changes > records/4 {
		t.Errorf("%d changes for %d Records", changes, records)
	}
	for i := range uint64(records) {
		if owner := o.Owner(2 * i); owner != int32(1+i%7) {
			t.Errorf("key %d is with %d", 2*i, owner)
		}
	}
}

// What watchers carry is bounded, of one host and of all; one that leaves makes room.
func TestWhatWatchersCarryIsBounded(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	add := func(host string, size int) (*watcher, bool) {
		w := &watcher{host: host, size: size, events: make(chan *told, 1)}
		_, err := s.addWatcher(w)
		return w, err == nil
	}
	for i := range mostWatched / mostWatchedOfHost {
		w, ok := add(fmt.Sprint("h", i), mostWatchedOfHost)
		if _, more := add(w.host, 1); !ok || more {
			t.Fatalf("host %d may watch: %t, and beyond its share: %t", i, ok, more)
		}
		if i == 0 {
			defer func() {
				s.removeWatcher(w)
				if _, ok := add("another", 1); !ok {
					t.Error("one that left makes no room")
				}
			}()
		}
	}
	if _, ok := add("another", 1); ok {
		t.Error("all hosts together have more than there is")
	}
	long := &api.WatchRequest{Jobs: []string{strings.Repeat("j", 1<<20)}, Runs: []*api.Running{{Moves: make([]int32, 1<<20)}}}
	if n := sizeOfWatch(long); n < 5<<20 || n > 6<<20 {
		t.Errorf("a request of 5 MiB counts as %d bytes", n)
	}
}
