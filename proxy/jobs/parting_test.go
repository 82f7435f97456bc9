package jobs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
)

// parted is a job of n servers for a parting: two keys of 4 MiB on server 0, whose
// keys this host moves, and moves that take no time.
type partedJob struct {
	parting
	servers int
	owners  map[uint64]int32
	now     time.Time
}

func newPartedJob(wanted, servers int) *partedJob {
	return &partedJob{parting: parting{wanted: wanted}, servers: servers, owners: map[uint64]int32{1: 0, 2: 0}, now: time.Unix(1000, 0)}
}

// step has a worker push all keys, a while after the last step, and returns the moves,
// which are carried out.
func (j *partedJob) makeStep(took time.Duration) []partMove {
	j.now = j.now.Add(took)
	for key := range uint64(3) {
		if key > 0 {
			j.notePush(key, 4<<20, 9, j.now)
			j.notePush(key, 4<<20, 11, j.now)
		}
	}
	moves := j.look()
	for _, m := range moves {
		j.owners[m.key] = m.to
		j.moved(m)
	}
	return moves
}

func (j *partedJob) look() []partMove {
	return j.next(j.now, j.servers, func(key uint64) int32 { return j.owners[key] }, func(r int32) bool { return r == 0 }, func(uint64) bool { return false })
}

func TestLargeValuesGoIntoSoManyParts(t *testing.T) {
	j := newPartedJob(3, 4)
	j.notePush(7, partFrom-1, 9, j.now)
	if moves := j.makeStep(time.Second); moves != nil {
		t.Errorf("after two pushes %v move", moves)
	}
	want := []partMove{{1, 0, plan.Parted(3)}, {2, 0, plan.Parted(3)}}
	if moves := j.makeStep(time.Second); !slices.Equal(moves, want) {
		t.Errorf("%v move, want %v", moves, want)
	}
	if moves := j.makeStep(time.Second); len(moves) > 0 {
		t.Errorf("what is in parts moves: %v", moves)
	}
	if j := newPartedJob(16, 2); j.makeStep(0) == nil {
		if moves := j.makeStep(0); len(moves) != 2 || moves[0].to != plan.Parted(2) {
			t.Errorf("in a job of two servers %v move", moves)
		}
	}
}

// What somebody else brought home stays there, and so does all else.
func TestWhatWasBroughtHomeStaysWhole(t *testing.T) {
	j := newPartedJob(2, 4)
	j.makeStep(0)
	j.makeStep(0)
	j.owners[2] = 0
	for range 3 {
		if moves := j.makeStep(0); len(moves) > 0 {
			t.Fatalf("%v move", moves)
		}
	}
	if j.off.Reason != "restored" || j.state().Not.Reason != "restored" {
		t.Errorf("left alone because of %+v", j.off)
	}
}

// What cannot move is tried again, with pauses, and not for ever.
func TestPartsAreTriedSomeTimes(t *testing.T) {
	j, tries := newPartedJob(2, 4), 0
	for range 6 {
		j.notePush(1, 4<<20, 9, j.now)
	}
	for range 1000 {
		j.now = j.now.Add(100 * time.Millisecond)
		if len(j.look()) > 0 {
			tries++
			j.failed(j.now, j.round, errors.New("no"))
		}
	}
	if tries != maxPartTries || j.off.Reason != "busy" || j.off.Why != "no" {
		t.Errorf("%d tries, then %+v", tries, j.off)
	}
}

// Keys that are tried together and fail are one attempt, also where some of them fail late.
func TestFailuresOfOneAttemptCountOnce(t *testing.T) {
	j, tries, late := newPartedJob(2, 4), 0, -1
	for range 6 {
		j.notePush(1, 4<<20, 9, j.now)
		j.notePush(2, 4<<20, 9, j.now)
	}
	for range 1000 {
		j.now = j.now.Add(100 * time.Millisecond)
		round := j.round
		if len(j.look()) == 0 {
			continue
		}
		tries++
		if late >= 0 {
			j.failed(j.now, late, errors.New("late"))
		}
		j.failed(j.now, round, errors.New("no"))
		late = round
	}
	if tries != maxPartTries || j.off.Why != "no" {
		t.Errorf("%d attempts, then %+v", tries, j.off)
	}
}

// The number of parts is found by steps that take what theta0 + theta1/P + theta2 P says,
// though one in ten takes much longer; then all values are in that many.
func TestPartsAreFoundBySteps(t *testing.T) {
	for _, c := range []struct {
		servers      int
		theta1, each float64
		best         int
	}{
		{8, 1, 0.001, 8},  // the more the better
		{8, 1, 0.1, 3},    // the least is between 2 and 4
		{8, 0.01, 0.1, 1}, // best whole
		{2, 1, 0, 2},
	} {
		j := newPartedJob(AutoParts, c.servers)
		for n := range 3000 {
			p := max(1, plan.PartsOf(j.owners[1]))
			took := 0.05 + c.theta1/float64(p) + c.each*float64(p)
			if n%10 == 3 {
				took *= 4
			}
			j.makeStep(time.Duration(took * float64(time.Second)))
		}
		want := plan.Parted(c.best)
		if c.best == 1 {
			want = 0
		}
		s := j.state()
		if !s.Settled || s.Target != c.best || j.owners[1] != want || j.owners[2] != want {
			t.Errorf("%+v: settled %v with %d parts, owners %v, after %v", c, s.Settled, s.Target, j.owners, s.Samples)
		}
		if len(s.Samples) > 8 || s.Fit == nil || s.Fit.Error > 0.05 {
			t.Errorf("%+v: samples %v, fit %+v", c, s.Samples, s.Fit)
		}
	}
}

// Where large values are on several servers nothing is tried.
func TestSpreadValuesStayWhole(t *testing.T) {
	j := newPartedJob(AutoParts, 4)
	j.owners[2] = 3
	j.makeStep(0)
	if moves := j.makeStep(0); len(moves) > 0 || j.off.Reason != "spread" {
		t.Errorf("%v move; %+v", moves, j.off)
	}
}
