package van

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	unackedRoom = 1 << 16 // messages that may be without acknowledgement
	seenRoom    = 1 << 20 // signatures of received messages that are remembered
)

// A resender keeps the messages that it sends until they are acknowledged, and
// repeats them if that takes too long; and it recognizes messages that it has
// received before. It is PS-lite's resender except for two things: it gives up after
// the van's patience and not after ten repetitions, and it remembers a bounded number
// of signatures.
type resender struct {
	timeout time.Duration
	room    chan struct{} // holds one element for each entry of unacked

	mu      sync.Mutex          // guards unacked, seen, order and oldest
	unacked map[uint64]*unacked // by signature
	seen    map[uint64]struct{} // signatures of received messages; the same as in order
	order   []uint64            // in order of arrival, a ring once it is full
	oldest  int                 // the oldest in order, then

	repeats    atomic.Int64
	duplicates atomic.Int64
}

// An unacked is a message without an acknowledgement. due and repeats are guarded by
// the resender's mu. frames belong to the resender and do not change, so that a
// repetition needs no further copy.
type unacked struct {
	to      int
	frames  [][]byte
	first   time.Time   // when it was sent, to give up by
	due     time.Time   // when it is repeated
	queued  atomic.Bool // it has not been written yet
	repeats int
}

// newResender returns a resender that repeats a message for the first time after
// timeout, then after twice, three times that long and so on.
func newResender(timeout time.Duration) *resender {
	r := &resender{timeout: timeout, room: make(chan struct{}, unackedRoom),
		unacked: make(map[uint64]*unacked), seen: make(map[uint64]struct{})}
	return r
}

// keepFrames copies a message that is about to be sent to a node, and returns the
// copy for the dealer. The caller's memory is free after that. It blocks while
// unackedRoom messages are without an acknowledgement.
func (r *resender) keepFrames(ctx context.Context, signature uint64, to int, frames [][]byte) (o outgoing, err error) {
	select {
	case r.room <- struct{}{}:
	case <-ctx.Done():
		return o, context.Cause(ctx)
	}
	total := 0
	for _, f := range frames {
		total += len(f)
	}
	// One allocation for all frames of the message.
	copied := make([]byte, 0, total)
	u := &unacked{to: to, first: time.Now()}
	for _, f := range frames {
		at := len(copied)
		copied = append(copied, f...)
		u.frames = append(u.frames, copied[at:])
	}
	r.mu.Lock()
	// PS-lite's signatures do not cover everything: two customers of an app may use
	// the same. An ACK for one would be taken for both.
	if _, twice := r.unacked[signature]; twice {
		r.mu.Unlock()
		<-r.room
		return o, fmt.Errorf("two messages to node %d have the signature %#x: PS_RESEND cannot distinguish them", to, signature)
	}
	r.unacked[signature] = u
	r.mu.Unlock()
	return r.outgoing(u), nil
}

// outgoing returns u for the dealer. Its time runs from when it is written: a message
// that waits for a connection is not overdue. Each repetition is given more time than
// the one before.
func (r *resender) outgoing(u *unacked) outgoing {
	u.queued.Store(true)
	return outgoing{frames: u.frames, written: func() {
		r.mu.Lock()
		u.due = time.Now().Add(r.timeout * time.Duration(1+u.repeats))
		r.mu.Unlock()
		u.queued.Store(false)
	}}
}

// acknowledge forgets a message that has arrived. Repeated acknowledgements mean
// nothing.
func (r *resender) acknowledge(signature uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.unacked[signature]; ok {
		delete(r.unacked, signature)
		<-r.room
	}
}

// dropNode drops the messages for a node that is gone.
func (r *resender) dropNode(node int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The dealer may still hold the message. Whether it writes it no longer matters:
	// written then changes an entry that nothing refers to.
	for signature, u := range r.unacked {
		if u.to == node {
			delete(r.unacked, signature)
			<-r.room
		}
	}
}

// received records a message's signature and reports whether it has come before.
// Signatures older than the last seenRoom are forgotten.
func (r *resender) received(signature uint64) (before bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, before = r.seen[signature]; before {
		r.duplicates.Add(1)
		return true
	}
	if len(r.order) < seenRoom {
		r.order = append(r.order, signature)
	} else {
		delete(r.seen, r.order[r.oldest])
		r.order[r.oldest] = signature
		r.oldest = (r.oldest + 1) % seenRoom
	}
	r.seen[signature] = struct{}{}
	return false
}

// overdue returns the messages to repeat now. It is an error for a message to stay
// without an acknowledgement for longer than patience.
func (r *resender) overdue(now time.Time, patience time.Duration) ([]*unacked, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []*unacked
	for _, u := range r.unacked {
		if now.Sub(u.first) > patience {
			return nil, fmt.Errorf("node %d has not acked a message within %v and %d retransmissions", u.to, patience, u.repeats)
		}
		// A repetition that still waits to be written is not repeated again.
		if !u.queued.Load() && now.After(u.due) {
			u.repeats++
			due = append(due, u)
		}
	}
	r.repeats.Add(int64(len(due)))
	return due, nil
}

// left returns how many messages are without an acknowledgement.
func (r *resender) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.unacked)
}
