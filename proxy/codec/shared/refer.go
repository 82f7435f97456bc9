package shared

import "time"

const (
	// roomWithin is how long an answer waits for room in memory before it goes as it is.
	roomWithin = 200 * time.Millisecond
	// firstWithin is how long the first answers wait for the lane to be made.
	firstWithin = 250 * time.Millisecond
)

// Referred is how values go that were shown to [Outlet.Refer].
type Referred struct {
	Number uint64
	// Lane is how many bytes they took there; 0: another link's had brought them.
	Lane int
}

// Refer shares an answer's values, and reports whether it did: then the link says the
// number in their stead. It waits for the lane, and for the link's process to read, as a
// link is waited for; for the lane's beginning and for memory a moment. pack returns values as they are to go over the
// lane; the memory is its own.
func (o *Outlet) Refer(subject Subject, values []byte, pack func([]byte) (form byte, packed []byte)) (r Referred, ok bool) {
	mayPut, ok := o.begin(subject)
	if !ok {
		return r, false
	}
	var p patience
	defer p.end()
	for {
		if number, found := o.find(subject, values); found {
			return Referred{Number: number}, true
		}
		wait, changed := o.mustWait(len(values))
		if wait == waitNot {
			if mayPut = mayPut || o.try(subject); !mayPut {
				return r, false
			}
			form, packed := pack(values)
			if len(packed) > 0 && len(packed) < Least {
				return r, false // it is not worth it
			}
			if number, onLane, ok := o.put(subject, values, form, packed); ok {
				return Referred{number, onLane}, true
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

// MayWait reports whether Refer may wait for the link's process to use earlier
// references, for values of at most that many bytes: only a reference that can have
// arrived is used.
func (o *Outlet) MayWait(bytes int) bool {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.mayRefer(o, bytes)
}

// patience is how long Refer waits for what may not come.
type patience struct {
	timer *time.Timer
	what  int
}

// late returns when waiting for something has been long enough; nil: never.
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

// begin reports whether an answer can be shared at all, and whether its values may be
// kept where nobody had them.
func (o *Outlet) begin(subject Subject) (mayPut, ok bool) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	mayPut, o.tried = o.tried, false
	if subject.Bytes < Least || !s.sharing(o) {
		return false, false
	}
	s.countAnswer(subject.Bytes)
	if s.trial.isPlain() {
		s.plain(Slower)
		return false, false
	}
	if !s.mayFit(subject.Bytes) {
		s.plain(TooLarge)
		return false, false
	}
	return mayPut, true
}

// try reports whether values of which the other end has none are to be kept.
func (o *Outlet) try(subject Subject) bool {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.lessons.try(subject)
	if !ok {
		s.plain(Seldom)
	}
	return ok
}

// What keeps values from being put.
const (
	waitNot   = iota
	waitFirst // the lane is being made
	waitLane  // more is to be written than ought to be, or more memory is asked for
	waitLink  // the link's process has not read what it was referred to
	waitRoom  // all that is kept is under way
	waitNever // nothing that would change soon
)

// mustWait returns the event to wait for, and when to look again.
func (o *Outlet) mustWait(n int) (what int, changed <-chan struct{}) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.attached && !s.begun:
		return waitFirst, s.waiter()
	case !s.attached:
		s.plain(NoLane)
		return waitNever, nil
	case !s.fits(n) && 2*n <= s.asked:
		return waitLane, s.waiter()
	case !s.fits(n):
		s.plain(TooLarge)
		return waitNever, nil
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

// giveUp notes that waiting was in vain: nobody does again before something changes.
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
