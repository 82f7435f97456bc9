package best

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A team runs one function at a time on all of its members, many thousand times a second. Members
// spin for the next job before they sleep, because waking a goroutine takes as long as a small job.
// If a member is off its core, because that has other work, the caller does the member's job in its
// place; otherwise every job would wait for the scheduler.
//
// The caller is member 0. job is written before epoch changes and read after it was seen to change.
// epoch does not change before all members' jobs are done, so a member that sees epoch sees its
// job.
type team struct {
	members int
	epoch   atomic.Uint64
	// By member, the last epoch whose job for it was begun, by itself or by the caller.
	begun []atomic.Uint64
	done  atomic.Int64
	job   func(member int)
	ended atomic.Bool
	exit  sync.WaitGroup

	asleep atomic.Int64
	// Guards wake. A broadcast takes it after epoch has changed, so no member goes to sleep in
	// between.
	mutex sync.Mutex
	wake  sync.Cond // the epoch has changed
}

// newTeam starts a goroutine for each member but the caller. The team must be closed.
func newTeam(members int) *team {
	t := &team{members: members, begun: make([]atomic.Uint64, members)}
	t.wake.L = &t.mutex
	for i := 1; i < members; i++ {
		t.exit.Go(func() { t.serve(i) })
	}
	return t
}

// runAll calls job(0) to job(members-1), each once, in parallel as far as members are running, and
// waits for all of them.
func (t *team) runAll(job func(member int)) {
	t.done.Store(0)
	t.startJob(job)
	epoch := t.epoch.Load()
	for i := range t.members {
		t.try(i, epoch)
	}
	for i := 0; int(t.done.Load()) < t.members; i++ {
		relax(i)
	}
}

// try does a member's job of an epoch unless it was begun already. The compare-and-swap decides
// between the member and the caller.
func (t *team) try(member int, epoch uint64) {
	if t.begun[member].CompareAndSwap(epoch-1, epoch) {
		t.job(member)
		t.done.Add(1)
	}
}

// startJob publishes a job and wakes members that sleep.
func (t *team) startJob(job func(member int)) {
	t.job = job
	t.epoch.Add(1)
	if t.asleep.Load() > 0 {
		t.mutex.Lock()
		t.wake.Broadcast()
		t.mutex.Unlock()
	}
}

// serve is the loop of a member.
func (t *team) serve(member int) {
	for seen := uint64(0); ; {
		seen = t.await(seen)
		if t.ended.Load() {
			return
		}
		t.try(member, seen)
	}
}

// await returns the epoch once it is not the one seen: it spins for a while, then sleeps.
func (t *team) await(seen uint64) uint64 {
	for i := range spins {
		if now := t.epoch.Load(); now != seen {
			return now
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
	return t.epoch.Load()
}

// close ends the members and drops the reference to the last job. It may be called again.
func (t *team) close() {
	if t.ended.Swap(true) {
		return
	}
	t.startJob(nil)
	t.exit.Wait()
}

// spins is how often a member looks for its next job before it sleeps: for some tenths of a
// millisecond, longer than what is done between two jobs of a sweep.
const spins = 1 << 18

// relax is called after the i-th failed look. It lets other goroutines run now and then, so that
// spinning cannot starve them.
func relax(i int) {
	if i%1024 == 1023 {
		runtime.Gosched()
	}
}
