package plans

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// state is all that a service knows of testJob's epochs.
type state struct {
	Job           *api.JobPlan
	Waiting, Open [][]*api.MoveBatch // of each epoch
	Owners        []plan.Range
}

func stateOf(s *Service) state {
	j, err := s.find(testJob)
	if err != nil {
		return state{}
	}
	x := state{Job: j.describe()}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.epochs {
		x.Waiting, x.Open = append(x.Waiting, e.unsent()), append(x.Open, e.told())
	}
	x.Owners = slices.Collect(j.owners.All())
	return x
}

func act(s *Service, action api.ActRequest_Action) error {
	_, err := s.Act(context.Background(), &api.ActRequest{Job: testJob, Action: action})
	return err
}

// firstOpen returns an open batch of the plan that is being carried out, or nil.
func firstOpen(s *Service) *api.MoveBatch {
	j, err := s.find(testJob)
	if err != nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.moving == nil {
		return nil
	}
	return j.moving.told()[0]
}

// A plan or command whose write fails changes nothing, whatever part of it reached the disk, and
// the next attempt does what it would have done on a disk that never fails: in memory, and for a
// planner that starts from the disk.
func TestFailedWriteChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const servers, keys = 3, 12
		options := Options{Act: rapid.Bool().Draw(t, "acts"), Now: func() time.Time { return time.Unix(1, 0) }}
		open := func(d store.Store) *Service {
			s := require.Value(New(context.Background(), d, options))(t)
			return s
		}
		failing := false
		disk, reliable := &shaky{fails: func(n int) int {
			if !failing {
				return -1
			}
			return rapid.IntRange(0, n-1).Draw(t, "written")
		}}, &store.Memory{}
		ours, theirs := open(disk), open(reliable)
		proposal := func() Proposal {
			p := Proposal{Job: testJob, Servers: servers}
			for range rapid.IntRange(1, 6).Draw(t, "targets") {
				first := rapid.Uint64Range(0, keys-1).Draw(t, "first")
				p.Targets = append(p.Targets, target(first, first, rapid.Int32Range(0, servers-1).Draw(t, "owner")))
			}
			return p
		}
		both := func(do func(s *Service) error) {
			t.Helper()
			a, b := status.Code(do(ours)), status.Code(do(theirs))
			if a != b {
				t.Fatalf("after failed writes the answer is %v, without them %v", a, b)
			}
		}
		p := proposal()
		p.Targets = append(p.Targets, target(keys, keys, 1))
		both(func(s *Service) error { _, err := s.Propose(context.Background(), p); return err })
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			var do func(s *Service) error
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1:
				p := proposal()
				do = func(s *Service) error { _, err := s.Propose(context.Background(), p); return err }
			case 2:
				do = func(s *Service) error { return act(s, api.ActRequest_APPLY) }
			case 3:
				do = func(s *Service) error { return act(s, api.ActRequest_ROLLBACK) }
			case 4:
				do = func(s *Service) error { return act(s, api.ActRequest_RESTORE) }
			case 5, 6: // a batch is carried out
				b := firstOpen(theirs)
				if b == nil {
					continue
				}
				both(func(s *Service) error {
					_, err := s.Record(context.Background(), &api.RecordRequest{Job: testJob, From: b.GetFrom(), To: b.GetTo(), First: b.GetFirst(), Last: b.GetLast()})
					s.Settle(context.Background(), &api.MoveReport{Job: testJob, Batch: b.GetBatch(), Done: true, MovedKeys: 1})
					return err
				})
				continue
			}
			for range rapid.IntRange(0, 2).Draw(t, "failures") {
				before := stateOf(ours)
				failing = true
				err := do(ours)
				failing = false
				if status.Code(err) != codes.Unavailable {
					break // it has written nothing
				}
				if diff := cmp.Diff(before, stateOf(ours), protocmp.Transform()); diff != "" {
					t.Fatalf("a failed write (%v) changes the plans:\n%s", err, diff)
				}
				open(disk) // it starts from what was written
			}
			both(do)
			if diff := cmp.Diff(stateOf(theirs), stateOf(ours), protocmp.Transform()); diff != "" {
				t.Fatalf("failed writes before have changed what a plan does:\n%s", diff)
			}
			if diff := cmp.Diff(stateOf(open(reliable)), stateOf(open(disk)), protocmp.Transform()); diff != "" {
				t.Fatalf("failed writes before have changed what is on disk:\n%s", diff)
			}
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				ours, theirs = open(disk), open(reliable)
			}
		}
	})
}

// Rollbacks go back plan by plan, past plans that were never applied.
func TestRollbacksGoBackPlanByPlan(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{})
	finish := func() {
		t.Helper()
		for b := firstOpen(s); b != nil; b = firstOpen(s) {
			if _, err := s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: b.GetFrom(), To: b.GetTo(), First: b.GetFirst(), Last: b.GetLast()}); err != nil {
				t.Fatal(err)
			}
			s.Settle(t.Context(), &api.MoveReport{Job: testJob, Batch: b.GetBatch(), Done: true})
		}
	}
	for _, owner := range []int32{1, 2} {
		propose(t, s, 3, target(1, 1, owner))
		require.NoError(t, act(s, api.ActRequest_APPLY))
		finish()
	}
	propose(t, s, 3, target(1, 1, 0), target(9, 9, 1)) // superseded by the rollback
	require.NoError(t, act(s, api.ActRequest_ROLLBACK))
	if err := act(s, api.ActRequest_ROLLBACK); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second rollback before the first is done: %v", err)
	}
	finish()
	if got, want := owners(s), []plan.Range{target(1, 1, 1)}; !slices.Equal(got, want) {
		t.Errorf("after one rollback displaced is %v, want %v", got, want)
	}
	require.NoError(t, act(s, api.ActRequest_ROLLBACK))
	finish()
	if got := owners(s); len(got) != 0 {
		t.Errorf("after two rollbacks displaced is %v", got)
	}
	if err := act(s, api.ActRequest_ROLLBACK); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a rollback with nothing left to roll back: %v", err)
	}
}

// whileRead is a store that calls during in the middle of a reading.
type whileRead struct {
	store.Memory
	during func()
}

func (w *whileRead) Each(ctx context.Context, each func(string, []byte) error) error {
	err := w.Memory.Each(ctx, each)
	if w.during != nil {
		w.during()
	}
	return err
}

// A record that comes while its run is dropped is refused, not acknowledged and lost.
func TestNoRecordIsLostToForget(t *testing.T) {
	disk := &whileRead{}
	s := newService(t, disk, Options{Act: true})
	propose(t, s, 2, target(7, 7, 1))
	j := require.Value(s.find(testJob))(t)
	recorded := make(chan error, 1)
	disk.during = func() {
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			_, err := s.Record(context.Background(), &api.RecordRequest{Job: testJob, From: 0, To: 1, First: []uint64{7}})
			recorded <- err
		}()
		// A run that is not locked meanwhile lets the record pass.
		if j.mu.TryLock() {
			j.mu.Unlock()
			<-returned
		}
	}
	require.NoError(t, s.dropRuns(t.Context(), []*job{j}, s.refuseCarried))
	disk.during = nil
	if err := <-recorded; status.Code(err) != codes.NotFound {
		t.Errorf("a record while its run was dropped: %v", err)
	}
}

// A run that a proxy has begun to watch since it was chosen is not dropped.
func TestWatchedRunIsNotDropped(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	run := runs(1)[0]
	_, _, stop := watch(t, s, client(t, s), running(run))
	defer stop()
	j := require.Value(s.find(testJob))(t)
	if err := s.dropRuns(t.Context(), []*job{j}, s.refuseCarried); status.Code(err) != codes.Unavailable {
		t.Errorf("dropping a run that is watched: %v", err)
	}
	if j.isGone() {
		t.Error("a run that a proxy watches was dropped")
	}
}

// unsent returns the batches that wait to be sent, in the order of their numbers.
func (e *epoch) unsent() []*api.MoveBatch {
	var all []*api.MoveBatch
	for _, list := range e.waiting {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *api.MoveBatch) int { return int(a.GetBatch()) - int(b.GetBatch()) })
	return all
}
