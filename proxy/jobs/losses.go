package jobs

import (
	"maps"
	"sync"
)

// loss is why a message was dropped, as it is called in metrics.
type loss string

// Why messages of routers are dropped: parts of requests, merged answers, whole requests that were
// rerouted. With PS_RESEND the job repeats what it still waits for.
const (
	lostFull      loss = "full"      // more than maxPending wait for a connection; with PS_RESEND, the queue of answers is full
	lostOver      loss = "over"      // the job is over here, or another run has begun
	lostRestarted loss = "restarted" // their worker was restarted
)

// Why letters are dropped. Sites repeat what has not been answered, so no letter is missed for
// good. Those of other runs are counted as claims (claimRun).
const (
	letterFull     loss = "full"     // too many wait for the link to their host
	letterLink     loss = "link"     // the link to their host could not be made, or broke
	letterAddress  loss = "address"  // their host has no address in the node table
	letterStopping loss = "stopping" // this proxy ends, or has not started yet
	letterJob      loss = "job"      // received: of a job that this host does not route
	letterHost     loss = "host"     // received: from, or for, a host that is not in the node table
	letterHolds    loss = "holds"    // received: keys for which there is no room, see maxHeld
	letterOwner    loss = "owner"    // received: an owner of keys that no server or parts of this job can be
	letterVersions loss = "version"  // received: of a proxy that does not tell how its workers use keys
	letterState    loss = "state"    // received: what they start would not survive a kill, or the job's requests are refused
)

var (
	messageLosses = []loss{lostFull, lostOver, lostRestarted}
	letterLosses  = []loss{letterFull, letterLink, letterAddress, letterStopping, letterJob, letterHost, letterHolds, letterState, letterOwner, letterVersions}
)

// losses counts what was dropped, by reason. It is safe for concurrent use; no other lock is
// acquired while its mutex is held.
type losses struct {
	mu sync.Mutex // guards n
	n  map[loss]uint64
}

// count adds n to a reason.
func (l *losses) count(why loss, n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == nil {
		l.n = map[loss]uint64{}
	}
	l.n[why] += n
}

// read returns the totals of these reasons, also those that are 0.
func (l *losses) read(all []loss) map[string]uint64 {
	l.mu.Lock()
	n := maps.Clone(l.n)
	l.mu.Unlock()
	totals := map[string]uint64{}
	for _, why := range all {
		totals[string(why)] = n[why]
	}
	return totals
}

// LostMessages returns how many messages of routers were dropped since the start, by reason.
func (j *Jobs) LostMessages() map[string]uint64 { return j.messages.read(messageLosses) }

// DroppedLetters returns how many letters were dropped since the start, by reason.
func (j *Jobs) DroppedLetters() map[string]uint64 { return j.letters.read(letterLosses) }

// lose counts messages of the job's router that are dropped; the caller holds x.mu.
func (x *job) lose(why loss, n uint64) {
	x.lost += n
	x.jobs.messages.count(why, n)
}

// losePending drops the messages that wait for connections; the caller holds x.mu.
func (x *job) losePending(why loss) {
	x.lose(why, dropPending(x.pendingUp)+dropPending(x.pendingDown))
}

// loseAll counts what a job still had that is dropped: messages that wait for connections, and
// requests that wait for keys.
func (x *job) loseAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.losePending(lostOver)
	waiting, _ := x.router.Waiting()
	x.lose(lostOver, uint64(waiting))
}
