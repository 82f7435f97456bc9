package jobs

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/psidecar/psidecar/proxy/route"
)

// unusedAfter is how long a job has no connection on this host when it counts as
// over here: it has ended, or its worker on this host has.
const unusedAfter = 2 * time.Second

// errOver is why keys of a job that is over are not moved.
var errOver = errors.New("the job is over: it has no connections any more on the host that would move these keys")

// connected reports whether the job has connections on this host; the caller holds
// x.mu.
func (x *job) connected() bool { return len(x.up)+len(x.down) > 0 }

// over reports whether the job is over, as far as this host can see; the caller
// holds x.mu. It is to be called again and again.
func (x *job) over(now time.Time) bool {
	if x.connected() {
		x.inUse = now
	}
	since, ok := x.serving()
	return ok && now.Sub(x.inUse) >= unusedAfter && now.Sub(since) >= x.expected
}

// serving returns since when the job's processes on this host reach the proxy:
// before that they have no connections, however much they want them.
func (x *job) serving() (since time.Time, ok bool) {
	if g := x.jobs.opts.Guard; g != nil {
		return g.Serving()
	}
	return time.Time{}, true
}

// settleOver ends what a job that is over has to do; the caller holds x.mu. Moves
// that the planner's store may have taken in are carried to their end, all others
// are given up and refused, and nothing more is said to servers and workers. Keys
// held for other sites stay held: their part may not be over.
func (x *job) settleOver() {
	for number := range x.underWay {
		x.site.Drop(route.Batch{Mover: x.site.Name(), Number: number}, errOver)
	}
	for _, w := range x.work {
		x.refuse(w, "ended", errOver.Error(), len(w.keys))
	}
	x.work = nil
	if x.probe != nil {
		if x.probe.op != nil {
			x.router.Cancel(x.probe.op)
		}
		x.probe = nil
	}
	x.lost += dropPending(x.pendingUp) + dropPending(x.pendingDown)
	if x.site.Moving() > 0 {
		x.site.Repeat() // changes to record
	}
}

// dropPending empties queues and returns how many messages they had.
func dropPending(queues map[pair][][]byte) (n uint64) {
	for _, q := range queues {
		n += uint64(len(q))
	}
	clear(queues)
	return n
}

// Guard keeps connections of a run's processes from going past the proxy. It is a
// [proxy.Guard].
type Guard interface {
	// Need says whether connections of a run of a job must fail rather than go
	// past the proxy. It does not block, and is said again and again.
	Need(run, job string, on bool)
	// Guarded reports whether that is so by now.
	Guarded(run string) bool
	// Serving returns since when processes of this host reach the proxy; false:
	// they do not yet.
	Serving() (since time.Time, ok bool)
}

// runName tells this run of a job from others.
func (x *job) runName() string { return filepath.Base(x.dir) }

// guard has connections fail rather than go past this proxy while keys are, or
// may be, displaced, or a server here may owe a proxy an answer: the latter also
// where no worker runs, without whose connections the job counts as over.
func (x *job) guard() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if x.site == nil || x.gone {
		x.needGuard(false)
		return
	}
	displaced := !x.router.Table().Empty() || len(x.router.Holds()) > 0 || !x.router.Ready()
	_, unused := x.unusedSince(now)
	x.needGuard(displaced && !x.over(now) || x.owes(now) && !unused)
}

// needGuard says whether connections must not pass; the caller holds x.mu.
func (x *job) needGuard(on bool) {
	if g := x.jobs.opts.Guard; g != nil {
		g.Need(x.runName(), x.name, on)
	}
}

// guarded reports whether connections that pass this proxy by fail.
func (x *job) guarded() bool {
	g := x.jobs.opts.Guard
	return g != nil && g.Guarded(x.runName())
}
