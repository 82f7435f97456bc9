package plans

import (
	"fmt"
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

// moveKeys records keys for one server after another.
func moveKeys(t *testing.T, s *Service, from, to int32, keys ...uint64) {
	t.Helper()
	require.Value(s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: from, To: to, First: keys}))(t)
}

// carryOut records and reports the batches of the plan that is being carried out, until none is open.
func carryOut(t *testing.T, s *Service) {
	t.Helper()
	for b := firstOpen(s); b != nil; b = firstOpen(s) {
		if _, err := s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: b.GetFrom(), To: b.GetTo(), First: b.GetFirst(), Last: b.GetLast()}); err != nil {
			t.Fatal(err)
		}
		s.Settle(t.Context(), &api.MoveReport{Job: testJob, Batch: b.GetBatch(), Done: true, MovedKeys: 1})
	}
}

func command(t *testing.T, s *Service, action api.ActRequest_Action) uint64 {
	t.Helper()
	acted := require.Value(s.Act(t.Context(), &api.ActRequest{Job: testJob, Action: action}))(t)
	return acted.GetEpoch()
}

// What a proxy had begun to move before a command is recorded during it, moved back, and refused once
// the command is done.
func TestCommandDuringAMove(t *testing.T) {
	for _, action := range []api.ActRequest_Action{api.ActRequest_RESTORE, api.ActRequest_ROLLBACK} {
		s := newService(t, &store.Memory{}, Options{Act: true})
		propose(t, s, 4, target(10, 12, 3), target(20, 20, 2))
		moveKeys(t, s, 0, 2, 20)
		number := command(t, s, action)
		moveKeys(t, s, 0, 3, 10, 11)
		carryOut(t, s)
		if e := s.Epoch(testJob, number); e.GetState() != api.Epoch_DONE || e.GetKeys() != 3 {
			t.Errorf("%v: epoch %d is %v, with %d keys", action, number, e.GetState(), e.GetKeys())
		}
		if left := owners(s); len(left) > 0 {
			t.Errorf("%v is done, and displaced is %v", action, left)
		}
		_, err := s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: 0, To: 3, First: []uint64{12}})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "psidecar plan apply") {
			t.Errorf("%v is done, and a move from before it is recorded: %v", action, err)
		}
	}
}

// Keys that a proxy refuses to bring home are tried again after a pause, and until then it is said
// where they are.
func TestRefusedKeysComeHomeLater(t *testing.T) {
	now := time.Unix(1, 0)
	s := newService(t, &store.Memory{}, Options{Act: true, Now: func() time.Time { return now }})
	propose(t, s, 4, target(10, 11, 3))
	carryOut(t, s)
	number := command(t, s, api.ActRequest_RESTORE)
	b := firstOpen(s)
	moveKeys(t, s, 3, 0, 10)
	s.Settle(t.Context(), &api.MoveReport{Job: testJob, Batch: b.GetBatch(), Done: true, MovedKeys: 1, Refused: []*api.Refusal{{Reason: "busy", Keys: 1, Example: 11}}})
	s.retry(t.Context()) // too early
	d := require.Value(s.Describe(t.Context(), &api.DescribeRequest{}))(t)
	e := d.GetJobs()[0].GetEpochs()[1]
	if w := e.GetWaits(); e.GetState() != api.Epoch_MOVING || e.GetMovedKeys() != 1 || len(e.GetRefused()) != 1 || len(w) != 1 || w[0].GetServer() != 3 || w[0].GetKeys() != 1 || w[0].GetExample() != 11 {
		t.Errorf("of a restore that leaves a key is said: %v", e)
	}
	now = now.Add(retryAfter)
	s.retry(t.Context())
	carryOut(t, s)
	if e := s.Epoch(testJob, number); e.GetState() != api.Epoch_DONE || e.GetMovedKeys() != 2 || len(e.GetRefused()) > 0 || len(owners(s)) > 0 {
		t.Errorf("displaced is %v; of the restore is said: %v", owners(s), e)
	}
}

// A record that is repeated succeeds, whatever was commanded since.
func TestRepeatedRecordOfPartsAfterRestore(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	propose(t, s, 4, target(20, 20, 2))
	moveKeys(t, s, 0, plan.Parted(2), 10)
	command(t, s, api.ActRequest_RESTORE)
	moveKeys(t, s, 0, plan.Parted(2), 10)
	if _, err := s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: 0, To: plan.Parted(2), First: []uint64{11}}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another key goes into parts: %v", err)
	}
	carryOut(t, s)
	moveKeys(t, s, 0, 0, 10)
	if left := owners(s); len(left) > 0 {
		t.Errorf("restore is done, and displaced is %v", left)
	}
}

// A snapshot of which only a part was written is no obstacle to the next head.
func TestHalfASnapshot(t *testing.T) {
	cut := false
	disk := &shaky{fails: func(n int) int {
		if n > 3 && cut {
			return 3 // a part, the head, the removal of the old part
		}
		return -1
	}}
	s := newService(t, disk, Options{})
	s.logSlack = 4
	propose(t, s, 4, target(0, 0, 1))
	j := require.Value(s.find(testJob))(t)
	there := func(i int) { moveKeys(t, s, int32(i%2), int32((i+1)%2), 1) }
	i := 0
	for ; j.snapshot == 0; i++ {
		there(i)
	}
	cut = true
	for end := i + 40; i < end && !j.unsure; i++ {
		there(i)
	}
	if cut = false; !j.unsure {
		t.Fatal("no snapshot was cut")
	}
	propose(t, s, 4, target(1, 1, 2)) // writes the head
	if again := newService(t, disk, Options{}); !slices.Equal(owners(again), owners(s)) {
		t.Errorf("displaced is %v, after a restart %v", owners(s), owners(again))
	}
}

// The number of a proposal never stands for another plan.
func TestNumbersAreNotReused(t *testing.T) {
	disk := &store.Memory{}
	s := newService(t, disk, Options{})
	first := propose(t, s, 4, target(10, 10, 3))
	s = newService(t, disk, Options{})
	second := propose(t, s, 4, target(10, 10, 2))
	if second == first {
		t.Fatalf("two plans have number %d", first)
	}
	_, err := s.Act(t.Context(), &api.ActRequest{Job: testJob, Action: api.ActRequest_APPLY, Epoch: first})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("applying a plan that was replaced: %v", err)
	}
	d, err := s.Describe(t.Context(), &api.DescribeRequest{})
	if err != nil || len(d.GetJobs()[0].GetEpochs()) != 1 {
		t.Errorf("one proposal is left of two: %v, %v", d, err)
	}
}

// Jobs that no proxy carries make room for others, unless their keys are displaced.
func TestJobsWithoutProxiesMakeRoom(t *testing.T) {
	s := newService(t, &store.Memory{}, Options{Act: true})
	propose(t, s, 4, target(10, 10, 3))
	moveKeys(t, s, 0, 3, 10)
	for i := range MaxJobs {
		s.Trouble(t.Context(), fmt.Sprintf("10.0.%d.%d:9091", i/256, i%256), 2, "no proxy")
	}
	if _, err := s.Propose(t.Context(), Proposal{Job: "10.9.9.9:9091", Servers: 2, Targets: []plan.Range{target(1, 1, 1)}}); err != nil {
		t.Errorf("the next job gets no plan: %v", err)
	}
	if len(owners(s)) != 1 {
		t.Error("a job with a displaced key is gone")
	}
	if len(s.jobs) > MaxJobs {
		t.Errorf("there are %d jobs", len(s.jobs))
	}
}

// A report with long texts is taken.
func TestLongTextsAreCut(t *testing.T) {
	r := &api.MoveReport{Refused: []*api.Refusal{{Reason: "past", Message: strings.Repeat("h ö", 4000)}}, Handlers: []*api.Handler{{Message: strings.Repeat("x", 4000)}}}
	require.NoError(t, checkReport(r))
	if n, m := len(r.GetRefused()[0].GetMessage()), len(r.GetHandlers()[0].GetMessage()); n > maxText || m > maxText || n < maxText/2 {
		t.Errorf("texts have %d and %d bytes", n, m)
	}
}
