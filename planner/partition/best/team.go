package best

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A team runs one function at a time on all of its members, many thousand
// times a second: members spin for the next one before they sleep.
type team struct {
	members int
	epoch   atomic.Uint64
	done    atomic.Int64
	job     func(member int) // nil ends the members
	exit    sync.WaitGroup
}

func newTeam(members int) *team {
	t := &team{members: members}
	for i := 1; i < members; i++ {
		t.exit.Go(func() { t.serve(i) })
	}
	return t
}

// run calls job(0) to job(members-1) at the same time and waits for all.
func (t *team) run(job func(member int)) {
	t.job = job
	t.done.Store(0)
	t.epoch.Add(1)
	job(0)
	for i := 0; int(t.done.Load()) < t.members-1; i++ {
		relax(i)
	}
}

func (t *team) serve(member int) {
	for seen := uint64(0); ; seen++ {
		for i := 0; t.epoch.Load() == seen; i++ {
			relax(i)
		}
		job := t.job
		if job == nil {
			return
		}
		job(member)
		t.done.Add(1)
	}
}

func (t *team) close() {
	t.job = nil
	t.epoch.Add(1)
	t.exit.Wait()
}

// relax is called with the number of times that a wait has failed.
func relax(i int) {
	switch {
	case i > 1<<14:
		time.Sleep(20 * time.Microsecond)
	case i%64 == 63:
		runtime.Gosched()
	}
}
