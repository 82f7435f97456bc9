package jobs

import "github.com/psidecar/psidecar/proxy/route"

// What the router makes and keeps of a worker's requests is bounded where it comes from: a
// connection whose next request would be taken, and not pass, is held up (see whole.go) while
//   - as many requests of the worker wait for its server as may: keys move, or their owners are not
//     known yet;
//   - a queue of the worker's messages to any server is full: a link is slow, or a connection is
//     missing;
//   - a queue of answers to the worker is full: it does not read;
//   - as many of its requests are split and not answered as may.
//
// The last two do not hold for jobs with PS_RESEND. There the worker's acknowledgements, without
// which a split request does not end and PS-lite reads nothing more, come behind the request that
// would wait. Instead, further answers and split requests are dropped, and come again.
//
// All of this goes on without what is held up: answers come on other connections, and a move that
// does not become quiet is given up. So nothing waits in a circle.

// full reports whether no more messages are to be made for a pair.
func full[C line](lines map[pair]C, pending map[pair][][]byte, p pair) bool {
	var waits backlog
	waits.addAll(pending[p]...)
	if c, ok := lines[p]; ok {
		return c.full(waits.messages, waits.bytes)
	}
	return waits.messages >= mostQueued || waits.bytes >= mostQueuedBytes
}

// crowded reports whether a request of a worker to a server has to stay unread, as above; the
// caller holds x.mu.
func (x *job) crowded(p pair) bool {
	if !x.hasRoom(p, 1) {
		x.crowds[p] = true
		return true
	}
	return anyFull(x.fullUp, x.up, x.pendingUp, p.worker) || !x.router.Resend() && anyFull(x.fullDown, x.down, x.pendingDown, p.worker)
}

// hasRoom reports whether the router has less than a part of what it may have of a worker's
// requests: those that wait for the server, and those that are split; the caller holds x.mu.
func (x *job) hasRoom(p pair, part int) bool {
	requests, bytes := x.router.Queued(p.worker, p.server)
	if requests*part >= mostQueued || bytes*part >= mostQueuedBytes {
		return false
	}
	return x.router.Resend() || x.router.InFlight(p.worker)*part < route.MaxSplits
}

// anyFull reports whether any of the queues of a worker that were full is so still. It forgets
// those that are not.
func anyFull[C line](were map[pair]bool, lines map[pair]C, pending map[pair][][]byte, worker int32) bool {
	for p := range were {
		switch {
		case p.worker != worker:
		case full(lines, pending, p):
			return true
		default:
			delete(were, p)
		}
	}
	return false
}

// relieve has connections that are held up look again once half of what the router had of their
// requests is gone; the caller holds x.mu. Less than all of it must do, or each answer would wake
// them for one request; and what makes a connection wait must not wake it at once.
func (x *job) relieve() {
	for p := range x.crowds {
		if x.hasRoom(p, 2) {
			delete(x.crowds, p)
			x.wakeHeldUp()
		}
	}
}
