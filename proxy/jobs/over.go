package jobs

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/psidecar/psidecar/proxy/route"
)

// unusedAfter is how long a job must be without a connection on this host to count as over here: it
// has ended, or its processes on this host have. Reconnecting takes less.
const unusedAfter = 2 * time.Second

// errOver is why keys of a job that is over are not moved.
var errOver = errors.New("the job is over: it has no connections any more on the host that would move these keys")

// connected reports whether a worker of the job on this host is connected to a server, or the
// reverse; the caller holds x.mu.
func (x *job) connected() bool { return len(x.up)+len(x.down) > 0 }

// over reports whether the job is over, as far as this host can see; the caller holds x.mu. It also
// notes the time of use, so it has to be called regularly.
func (x *job) over(now time.Time) bool {
	if x.connected() {
		x.inUse = now
	}
	// A proxy that has just replaced another has no connections yet; the job is not over because of
	// that.
	since, ok := x.serving()
	return ok && now.Sub(x.inUse) >= unusedAfter && now.Sub(since) >= x.expected
}

// serving returns the time since when the job's processes on this host reach the proxy. Before that
// they cannot connect, and the lack of connections means nothing.
func (x *job) serving() (since time.Time, ok bool) {
	if g := x.jobs.opts.Guard; g != nil {
		return g.Serving()
	}
	return time.Time{}, true
}

// settleOver winds up a job that is over; the caller holds x.mu. Moves that may have been recorded
// are carried to their end, all others are given up and refused, and pending messages are dropped.
// Keys held for other sites stay held: the job may not be over there.
func (x *job) settleOver() {
	// Drop leaves moves that may have been recorded: their outcome decides where keys are, for the
	// job's other hosts as well.
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
	x.losePending(lostOver)
	x.wakeHeldUp()
	if x.site.Moving() > 0 {
		x.site.Repeat() // changes to record
	}
}

// dropPending empties queues and returns the number of messages in them.
func dropPending(queues map[pair][][]byte) (n uint64) {
	for _, q := range queues {
		n += uint64(len(q))
	}
	clear(queues)
	return n
}

// Guard makes connections of a run's processes fail rather than bypass the proxy. It is a
// [proxy.Guard].
type Guard interface {
	// Need sets whether connections of a run of a job must fail rather than bypass the proxy. It
	// does not block, and is called again and again with the same value.
	Need(run, job string, on bool)
	// Guarded reports whether that is in effect.
	Guarded(run string) bool
	// Serving returns the time since when processes of this host reach the proxy; false: they do
	// not yet.
	Serving() (since time.Time, ok bool)
}

// runName identifies the run on this host: its folder's name.
func (x *job) runName() string { return filepath.Base(x.dir) }

// guard updates the guard. Connections must not bypass this proxy while keys are displaced, or may
// be, or while a server here may owe a proxy an answer. The latter also holds where no worker runs,
// whose connections alone keep a job from being over.
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

// needGuard sets the guard; the caller holds x.mu.
func (x *job) needGuard(on bool) {
	if g := x.jobs.opts.Guard; g != nil {
		g.Need(x.runName(), x.name, on)
	}
}

// guarded reports whether connections that bypass this proxy fail.
func (x *job) guarded() bool {
	g := x.jobs.opts.Guard
	return g != nil && g.Guarded(x.runName())
}
