package shared

import (
	"bufio"
	"errors"
	"io"
	"time"
)

// start begins a lane: the other end has all entries below next, except for those
// that it was asked to drop, and grants limit bytes in all. Entries that it lacks are
// queued again, in order, before anything else. It is an error if less is granted
// than is in use.
func (s *Source) start(next uint64, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Whatever was queued for the last lane is in entries, too.
	s.queue, s.queued, s.asked, s.denied = nil, 0, 0, 0
	s.loseTables()
	// These were outdated while there was no lane to say so. They are left out of keep
	// instead.
	s.dropWhere(func(e *entry) bool { return e.old && e.refs == 0 })
	if err := s.lower(limit); err != nil {
		return err
	}
	keep := frame{kind: kindKeep}
	s.attached, s.begun = true, true
	var again []frame
	for at := s.order.Front(); at != nil; at = at.Next() {
		e := at.Value.(*entry)
		if e.form == ByKey { // of a table that the new lane does not have
			s.bytes -= len(e.packed)
			s.dropPacked(e)
		}
		if e.written = e.number < next; e.written {
			keep.keep = append(keep.keep, e.number)
			continue
		}
		again = append(again, frame{kind: kindPut, number: e.number, entry: e})
	}
	s.enqueue(keep, 0)
	for _, f := range again {
		s.counts.SentBytes += uint64(len(f.entry.onLane()))
		s.enqueue(f, len(f.entry.onLane()))
	}
	s.wake()
	s.grant(limit)
	return nil
}

// lower keeps no more than limit bytes, if the last lane's end granted more.
func (s *Source) lower(limit int) error {
	if limit >= s.limit {
		return nil
	}
	s.dropWhere(func(e *entry) bool { return e.refs == 0 && s.bytes > limit })
	if s.bytes > limit {
		return corrupt("%d bytes are granted where %d are under way", limit, s.bytes)
	}
	if s.memory != nil {
		s.memory.Unreserve(s.limit - limit)
	}
	s.limit = limit
	s.spare.shrink(limit - s.bytes)
	return nil
}

// dropWhere drops entries for which unused holds, the oldest first. The caller holds s.mu.
func (s *Source) dropWhere(unused func(*entry) bool) {
	for at := s.order.Front(); at != nil; {
		e := at.Value.(*entry)
		at = at.Next()
		if unused(e) {
			s.drop(e)
		}
	}
}

// grant records how many bytes the other end keeps. Our own memory must suffice as well, or
// the limit stays. The caller holds s.mu.
func (s *Source) grant(limit int) {
	limit = min(limit, s.most)
	if limit > s.limit && (s.memory == nil || s.memory.TryReserve(limit-s.limit)) {
		s.limit = limit
	}
	if s.asked > s.limit {
		s.denied = s.asked
	}
	s.asked = 0
	s.moved()
}

// detach records that there is no lane. Entries and references stay: links wait, and the
// next lane resumes.
func (s *Source) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached = false
	s.queue, s.queued = nil, 0
	s.moved()
}

// moved wakes all waiters; each checks its own condition again. The caller holds
// s.mu.
func (s *Source) moved() {
	s.tight = false
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// close releases the memory, once there are no outlets any more.
func (s *Source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory != nil {
		s.memory.Unreserve(s.limit)
	}
	s.loseTables()
	s.attached, s.limit, s.bytes = false, 0, 0
	s.tables = map[tableKind]*tabled{}
	s.entries, s.latest, s.queue, s.spare = map[uint64]*entry{}, map[Subject]*entry{}, nil, spare{}
	s.order.Init()
	s.moved()
}

// take returns the frames to write, in order. Their bytes stay in queued until wrote is
// called.
func (s *Source) take() []frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.queue
	s.queue = nil
	return all
}

// mayWriteHere reports whether the lane takes the queue without waiting, so that whoever has queued
// something can write it: the other end has used almost all before.
func (s *Source) mayWriteHere() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached && s.queued <= writtenHere && s.pending <= writtenHere
}

// wrote records that frames were written and how long that took. From now on their entries
// may be dropped.
func (s *Source) wrote(all []frame, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range all {
		if f.kind == kindPut {
			s.speed.wrote(len(f.entry.onLane()), took)
			// The time is that of the whole batch, and counts once.
			took = 0
		}
	}
	// The lane ended meanwhile. How many of these frames the other end has read, it
	// reports when the lane is made again.
	if !s.attached {
		return
	}
	for _, f := range all {
		if f.kind == kindPut {
			s.queued -= len(f.entry.onLane())
			f.entry.written = true
			s.dropOld(f.entry)
		}
	}
	s.moved()
}

// usedBy records how many references a link has used by now. References are used in the
// order in which they were sent, so that a count says which.
func (s *Source) usedBy(link, count uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.outlets[link]
	if o == nil || count <= o.used {
		return nil // repeated after the lane was made again, or of a link that was forgotten
	}
	if count-o.used > uint64(len(o.refs)) {
		return corrupt("link %d has used %d references of %d", link, count, o.used+uint64(len(o.refs)))
	}
	s.release(o, int(count-o.used))
	return nil
}

// goneAt records that a link's other end uses nothing any more. This end may not have noticed
// that the link has ended: what it still sends there must not refer to anything, since nobody
// would acknowledge it.
func (s *Source) goneAt(link uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.outlets[link]; o != nil {
		o.ended = true
		s.release(o, len(o.refs))
		delete(s.outlets, link)
	}
}

// release records that a link's first n references were used. The caller holds s.mu.
func (s *Source) release(o *Outlet, n int) {
	for _, e := range o.refs[:n] {
		e.refs--
		o.pending -= len(e.values)
		s.pending -= len(e.values)
		s.dropOld(e)
	}
	o.used += uint64(n)
	o.refs = append(o.refs[:0], o.refs[n:]...)
	if o.ended && len(o.refs) == 0 {
		delete(s.outlets, o.link)
	}
	s.moved()
}

// read reads the other end's frames until the lane ends.
func (s *Source) read(r *bufio.Reader) error {
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return ended(err)
		}
		a, err := readNumber(r)
		if err != nil {
			return err
		}
		switch kind {
		case kindStart:
			b, err := readNumber(r)
			if err != nil {
				return err
			}
			if err := s.start(a, clip(b)); err != nil {
				return err
			}
		case kindUsed:
			count, err := readNumber(r)
			if err != nil {
				return err
			}
			if err := s.usedBy(a, count); err != nil {
				return err
			}
		case kindGone:
			s.goneAt(a)
		case kindLimit:
			s.mu.Lock()
			s.grant(clip(a))
			s.mu.Unlock()
		default:
			return corrupt("a frame of kind %d from the receiving end", kind)
		}
	}
}

// ended returns the error of reading a frame's first byte: a lane may end between two
// frames.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Counts returns the figures so far.
func (s *Source) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Counts
	c.Add(s.counts)
	c.HeldBytes = uint64(s.bytes)
	return c
}
