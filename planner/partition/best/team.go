package best

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A team runs one function at a time on all of its members, many thousand
// times a second: members spin for the next one before they sleep. Where the
// cores have other work too, a member may be off its core for milliseconds; what
// it has not begun by then is done in its place, or each of the jobs would wait
// for that.
type team struct {
	members int
	epoch   atomic.Uint64
	begun   []atomic.Uint64 // member -> the last epoch whose job for it was begun, by whomever
	done    atomic.Int64
	job     func(member int)
	ended   atomic.Bool
	exit    sync.WaitGroup

	asleep atomic.Int64
	mutex  sync.Mutex // of wake; a broadcast takes it after epoch has changed
	wake   sync.Cond  // the epoch has changed
}

func newTeam(members int) *team {
	t := &team{members: members, begun: make([]atomic.Uint64, members)}
	t.wake.L = &t.mutex
	for i := 1; i < members; i++ {
		t.exit.Go(func() { t.serve(i) })
	}
	return t
}

// runAll calls job(0) to job(members-1), each once, at the same time as far as
// members are there, and waits for all.
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

// try does a member's job of an epoch unless it was begun already. Until it is
// done, that epoch lasts, and so does the job.
func (t *team) try(member int, epoch uint64) {
	if t.begun[member].CompareAndSwap(epoch-1, epoch) {
		t.job(member)
		t.done.Add(1)
	}
}

// startJob lets the members do a job.
func (t *team) startJob(job func(member int)) {
	t.job = job
	t.epoch.Add(1)
	if t.asleep.Load() > 0 {
		t.mutex.Lock()
		t.wake.Broadcast()
		t.mutex.Unlock()
	}
}

func (t *team) serve(member int) {
	for seen := uint64(0); ; {
		seen = t.await(seen)
		if t.ended.Load() {
			return
		}
		t.try(member, seen)
	}
}

// await returns the epoch when it is no longer the one seen.
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

// close ends the members and lets go of what the last job saw. A closed team may
// be closed again.
func (t *team) close() {
	if t.ended.Swap(true) {
		return
	}
	t.startJob(nil)
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
