package best

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A team runs one function at a time on all of its members, many thousand
// times a second: members spin for the next one before they sleep.
type team struct {
	members int
	epoch   atomic.Uint64
	done    atomic.Int64
	job     func(member int) // nil ends the members
	exit    sync.WaitGroup

	asleep atomic.Int64
	mutex  sync.Mutex
	wake   sync.Cond // the epoch has changed
}

func newTeam(members int) *team {
	t := &team{members: members}
	t.wake.L = &t.mutex
	for i := 1; i < members; i++ {
		t.exit.Go(func() { t.serve(i) })
	}
	return t
}

// run calls job(0) to job(members-1) at the same time and waits for all.
func (t *team) run(job func(member int)) {
	t.done.Store(0)
	t.begin(job)
	job(0)
	for i := 0; int(t.done.Load()) < t.members-1; i++ {
		relax(i)
	}
}

// begin lets the members do a job.
func (t *team) begin(job func(member int)) {
	t.job = job
	t.epoch.Add(1)
	if t.asleep.Load() > 0 {
		t.mutex.Lock()
		t.wake.Broadcast()
		t.mutex.Unlock()
	}
}

func (t *team) serve(member int) {
	for seen := uint64(0); ; seen++ {
		t.await(seen)
		job := t.job
		if job == nil {
			return
		}
		job(member)
		t.done.Add(1)
	}
}

// await returns when the epoch is no longer the one seen.
func (t *team) await(seen uint64) {
	for i := range spins {
		if t.epoch.Load() != seen {
			return
		}
		relax(i)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.asleep.Add(1)
	for t.epoch.Load() == seen {
		t.wake.Wait()
	}
	t.asleep.Add(-1)
}

func (t *team) close() {
	t.begin(nil)
	t.exit.Wait()
}

// spins is how often a member looks for its next job before it sleeps: for
// some tenths of a millisecond, longer than what is done between two jobs of a
// sweep takes. To be woken takes a member as long as a small job.
const spins = 1 << 18

// relax is called with the number of times that a wait has failed.
func relax(i int) {
	if i%1024 == 1023 {
		runtime.Gosched()
	}
}
