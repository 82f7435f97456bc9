package live

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/test/require"
)

// Where workers turn to other keys the planner does not wait for its next
// decision, and where keys are moving it decides when they have moved.
func TestReacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
			var d *api.Description
			require.Await(t, fmt.Sprintf("%d epochs", n), func() (err error) {
				if d, err = f.service.Describe(ctx, &api.DescribeRequest{Job: testJob}); err == nil && len(d.GetJobs()[0].GetEpochs()) != n {
					err = fmt.Errorf("%v", d)
				}
				return err
			})
			return d.GetJobs()[0].GetEpochs()
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
	})
}

// A plan with as many groups as it may have is followed by one with the others as soon as
// it is carried out, or after a rest; one that is only proposed is not.
func TestPlansGoOn(t *testing.T) {
	for _, tc := range []struct{ act, rests, shifted bool }{{act: true}, {act: true, rests: true}, {act: true, rests: true, shifted: true}, {}} {
		act := tc.act
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
		if groups, more := j.strategy.(*dynamic.Locality).Groups(); groups != 1 || !more || j.goesOn != act {
			t.Fatalf("act %v: the first plan has %d groups, %v; another follows: %v", act, groups, more, j.goesOn)
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
		j.rests, j.shifted = tc.rests, tc.shifted
		e := f.service.Epoch(testJob, first.GetEpoch())
		rested := time.Unix(0, 2*e.GetEndedUnixNanos()-e.GetAppliedUnixNanos())
		for waits := true; waits; time.Sleep(time.Millisecond) {
			began := time.Now()
			switch waits, _ = f.planner.react(t.Context()); {
			case waits && (!tc.rests || tc.shifted || began.After(rested)):
				t.Fatalf("%+v: a plan is carried out and does not go on", tc)
			case !waits && tc.rests && !tc.shifted && time.Now().Before(rested):
				t.Error("a plan goes on without a rest")
			}
		}
		if n := len(f.shown(t).GetEpochs()); n != 2 || j.goesOn {
			t.Errorf("%d plans, another follows: %v", n, j.goesOn)
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
