package shared

import "time"

const (
	// roomWithin is how long an answer waits for room in memory before it goes as it is.
	roomWithin = 200 * time.Millisecond
	// firstWithin is how long the first answers wait for the lane to be made.
	firstWithin = 250 * time.Millisecond
)

// Referred says how values went that were shown to [Outlet.Refer].
type Referred struct {
	Number uint64
	// Lane is how many bytes they took on the lane; 0: they were there already, for another
	// link.
	Lane int
	// Spared is how many bytes of them were there already.
	Spared int
}

// Refer shares an answer's values and reports whether it did: then the link carries the
// number instead of the values. pack returns the form and the bytes in which they are to go
// over the lane, in memory of its own; it is called at most once before each put. With keys
// the answer may go by key instead.
//
// It blocks while the lane is behind and while the link's process does not read, without a
// bound, just as a write to the link would. For the beginning of the lane and for memory it
// waits a moment only: after that the answer goes as it is, which is always correct. Abort
// ends any wait.
func (o *Outlet) Refer(subject Subject, values []byte, pack func([]byte) (form byte, packed []byte), keys *ByKeys) (r Referred, ok bool) {
	mayPut, ok := o.begin(subject)
	if !ok {
		return r, false
	}
	var p patience
	defer p.end()
	for {
		if number, found := o.find(subject, values); found {
			return Referred{Number: number, Spared: len(values)}, true
		}
		// The channel is taken under the lock that decided to wait, so that no change in
		// between is missed.
		wait, changed := o.mustWait(len(values))
		if wait == waitNot {
			kind, byKey := o.mayByKey(subject, keys)
			if mayPut = mayPut || o.try(subject, byKey); byKey {
				if r, ok := o.putByKey(subject, values, keys, kind, mayPut); ok {
					o.source.deliver()
					return r, true
				}
				keys = nil // others were put, or there is no room for a table
				continue
			}
			if !mayPut {
				return r, false
			}
			form, packed := pack(values)
			if len(packed) > 0 && len(packed) < o.source.least {
				return r, false // it is not worth it
			}
			if number, onLane, ok := o.put(subject, values, form, packed, nil, true); ok {
				o.source.deliver()
				return Referred{Number: number, Lane: onLane}, true
			}
			continue // others were put
		}
		if wait == waitNever {
			return r, false
		}
		select {
		case <-changed:
		case <-o.abort:
			return r, false
		case <-p.late(wait):
			o.giveUp(wait)
			return r, false
		}
	}
}

// MayWait reports whether Refer may block for values of at most that many bytes until
// the link's process has used earlier references. The relay flushes the messages that
// it holds before: only a reference that can have arrived is ever used.
func (o *Outlet) MayWait(bytes int) bool {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.mayRefer(o, bytes)
}

// patience bounds the waits of one call of Refer, each kind by a timer of its own.
type patience struct {
	timer *time.Timer
	what  int
}

// late returns a channel that fires when a wait of this kind has been long enough; nil:
// never. The timer goes on if the same kind of wait is repeated.
func (p *patience) late(what int) <-chan time.Time {
	if what == waitLane || what == waitLink {
		return nil
	}
	if p.timer == nil || p.what != what {
		p.end()
		p.timer, p.what = time.NewTimer(map[int]time.Duration{waitRoom: roomWithin, waitFirst: firstWithin}[what]), what
	}
	return p.timer.C
}

func (p *patience) end() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// AnswersSeveral counts the link's process as one that is answered, and reports whether
// others are, too.
func (o *Outlet) AnswersSeveral() bool {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answersSeveral(o)
}

// Least returns the size of the smallest values that are shared.
func (o *Outlet) Least() int { return o.source.least }

// begin reports whether an answer can be shared at all, and whether its values may be kept
// if nobody had them yet. Wants may have decided that already; the decision must not be
// drawn twice.
func (o *Outlet) begin(subject Subject) (mayPut, ok bool) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	mayPut, o.tried = o.tried, false
	if subject.Bytes < s.least || !s.sharing(o) {
		return false, false
	}
	s.countAnswer(subject.Bytes)
	if !s.trial.On() {
		s.plain(Slower)
		return false, false
	}
	s.trial.Use(1)
	if !s.mayFit(subject.Bytes) {
		s.plain(TooLarge)
		return false, false
	}
	return mayPut, true
}

// try reports whether values that the other end does not have are to be kept for other links.
// Without, they go by key, or else as they are.
func (o *Outlet) try(subject Subject, byKey bool) bool {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.lessons.try(subject)
	if !ok && !byKey {
		s.plain(Seldom)
	}
	return ok
}

// What keeps values from being put.
const (
	waitNot   = iota
	waitFirst // the lane is being made
	waitLane  // too much is queued for the lane, or more memory was asked for
	waitLink  // the link's process has not used its earlier references
	waitRoom  // all entries are in use
	waitNever // a reason that will not change soon: the answer goes as it is
)

// mustWait returns what an answer of n bytes has to wait for, and the channel that is
// closed at the next change. It counts the reason if the answer must not wait.
func (o *Outlet) mustWait(n int) (what int, changed <-chan struct{}) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	// Its other end is gone, so that it does not matter how the answer goes.
	case o.ended:
		return waitNever, nil
	// The first answers of a job. Waiting for the lane a moment is better than
	// sending the model twice.
	case !s.attached && !s.begun:
		return waitFirst, s.waiter()
	case !s.attached:
		s.plain(NoLane)
		return waitNever, nil
	// More was asked for and would suffice: the answer to that is a round trip away.
	case !s.fits(n) && 2*n <= s.asked:
		return waitLane, s.waiter()
	case !s.fits(n):
		s.plain(TooLarge)
		return waitNever, nil
	// The process has more unread than its share. It would not read this answer any
	// sooner on its own link.
	case !s.mayRefer(o, n):
		return waitLink, s.waiter()
	case s.queued > queueBytes:
		return waitLane, s.waiter()
	case s.makeRoom(n):
		return waitNot, nil
	case s.tight:
		s.plain(NoRoom)
		return waitNever, nil
	}
	return waitRoom, s.waiter()
}

// giveUp records that waiting was in vain. Until something changes no link waits for
// the same again.
func (o *Outlet) giveUp(what int) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	if what == waitFirst {
		s.begun = true
		s.plain(NoLane)
		return
	}
	s.tight = true
	s.plain(NoRoom)
}
