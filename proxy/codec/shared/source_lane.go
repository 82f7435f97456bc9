package shared

import (
	"bufio"
	"errors"
	"io"
	"time"
)

// start begins a lane: the other end has all entries below next, and grants limit bytes
// in all. What it lacks is sent again. The error says that it grants less than is under
// way.
func (s *Source) start(next uint64, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue, s.queued, s.asked, s.denied = nil, 0, 0, 0
	s.dropWhere(func(e *entry) bool { return e.old && e.refs == 0 })
	if err := s.lower(limit); err != nil {
		return err
	}
	keep := frame{kind: kindKeep}
	s.attached, s.begun = true, true
	var again []frame
	for at := s.order.Front(); at != nil; at = at.Next() {
		e := at.Value.(*entry)
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
	s.grant(limit)
	return nil
}

// lower keeps no more than limit bytes, where another lane's end granted more.
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

// dropWhere drops entries, the oldest first.
func (s *Source) dropWhere(unused func(*entry) bool) {
	for at := s.order.Front(); at != nil; {
		e := at.Value.(*entry)
		at = at.Next()
		if unused(e) {
			s.drop(e)
		}
	}
}

// grant takes in how many bytes the other end keeps; the caller holds s.mu.
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

// detach notes that there is no lane.
func (s *Source) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached = false
	s.queue, s.queued = nil, 0
	s.moved()
}

// moved wakes all waiters; the caller holds s.mu.
func (s *Source) moved() {
	s.tight = false
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// close gives the memory back, once there are no outlets any more.
func (s *Source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory != nil {
		s.memory.Unreserve(s.limit)
	}
	s.attached, s.limit, s.bytes = false, 0, 0
	s.entries, s.latest, s.queue, s.spare = map[uint64]*entry{}, map[Subject]*entry{}, nil, spare{}
	s.order.Init()
	s.moved()
}

// take returns the entries to write, in order, until wrote is called.
func (s *Source) take() []frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.queue
	s.queue = nil
	return all
}

// wrote notes that frames were written.
func (s *Source) wrote(all []frame, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range all {
		if f.kind == kindPut {
			s.trial.wrote(len(f.entry.onLane()), took)
			took = 0
		}
	}
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

// usedBy records how many references a link has used by now.
func (s *Source) usedBy(link, count uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.outlets[link]
	if o == nil || count <= o.used {
		return nil // of before the lane broke, or of a link that is forgotten
	}
	if count-o.used > uint64(len(o.refs)) {
		return corrupt("link %d has used %d references of %d", link, count, o.used+uint64(len(o.refs)))
	}
	s.release(o, int(count-o.used))
	return nil
}

// goneAt takes in that a link's other end uses nothing any more.
func (s *Source) goneAt(link uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.outlets[link]; o != nil {
		s.release(o, len(o.refs))
		o.ended = true
		delete(s.outlets, link)
	}
}

// release notes that a link's first n references were used.
func (s *Source) release(o *Outlet, n int) {
	for _, e := range o.refs[:n] {
		e.refs--
		o.pending -= len(e.values)
		s.dropOld(e)
	}
	o.used += uint64(n)
	o.refs = append(o.refs[:0], o.refs[n:]...)
	if o.ended && len(o.refs) == 0 {
		delete(s.outlets, o.link)
	}
	s.moved()
}

// read takes what the other end says, to its end.
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

// ended is the error of reading the next frame: at a frame's beginning the lane may end.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Counts returns the figures of now.
func (s *Source) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Counts
	c.Add(s.counts)
	c.HeldBytes = uint64(s.bytes)
	return c
}
