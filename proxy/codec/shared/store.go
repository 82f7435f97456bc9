package shared

import (
	"sync"
)

// A Store is the receiving end of a group: values that came over its lane, until the
// sender has them dropped, and how many references each link has used. It holds that
// bytes is the sum of its entries' sizes, and at most limit.
//
// A Store is safe for use by several goroutines.
type Store struct {
	memory Reserver // nil: no bound
	most   int      // bytes that it grants at most

	mu       sync.Mutex // guards the rest
	limit    int        // bytes granted
	bytes    int
	entries  map[uint64]*held
	next     uint64 // all before have come, or never will
	lanes    int    // that there are, or are about to be
	attached bool
	links    map[uint64]*tally
	gone     map[uint64]bool          // links that have ended; true: it was said on this lane
	unsaid   int                      // bytes of values that were used, of which the sender has not heard
	grants   bool                     // the sender has not heard of limit
	waits    map[uint64]chan struct{} // closed when the number has come, or the lane began or ended
	spare    spare
	received uint64
	wake     func(soon bool) // is called when there is something to say
}

// held are values that came.
type held struct {
	values []byte
	pins   int // links that are about to use them
}

// tally is what a link has used.
type tally struct {
	used  uint64
	dirty bool // the sender has not heard
}

const (
	// sayFrom is how many bytes of values are used before the sender hears at once.
	sayFrom = 256 << 10
	// maxGone is of how many links it is remembered that they have ended.
	maxGone = 1 << 12
)

// NewStore returns a Store without values. It grants most bytes at most.
func NewStore(most int, memory Reserver) *Store {
	return &Store{
		memory: memory, most: most, entries: map[uint64]*held{}, links: map[uint64]*tally{}, gone: map[uint64]bool{},
		waits: map[uint64]chan struct{}{}, wake: func(bool) {},
	}
}

// grow grants up to want bytes, as far as there is memory, and sends the grant.
func (s *Store) grow(want int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for want = min(want, s.most); want-s.limit >= Least; want = s.limit + (want-s.limit)/2 {
		if s.memory == nil || s.memory.TryReserve(want-s.limit) {
			s.limit = want
			break
		}
	}
	s.grants = true
	s.wake(true)
}

// bind enters a link that refers to the group.
func (s *Store) bind(link uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[link] == nil {
		s.links[link] = &tally{}
	}
}

// leave notes that a link has ended, and reports whether nothing needs the Store.
func (s *Store) leave(link uint64) (unused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[link] != nil {
		delete(s.links, link)
		if len(s.gone) >= maxGone {
			clear(s.gone)
		}
		s.gone[link] = false
		s.wake(true)
	}
	return len(s.links) == 0 && s.lanes == 0
}

// take returns the values that a number stands for, which stay what they are until
// used is called. Where they have yet to come it returns when to look again, and
// whether there is a lane for them.
func (s *Store) take(number uint64) (values []byte, changed <-chan struct{}, attached bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.entries[number]; h != nil {
		h.pins++
		return h.values, nil, true, nil
	}
	if number < s.next {
		return nil, nil, false, corrupt("a reference to number %d, which is not kept", number)
	}
	c := s.waits[number]
	if c == nil {
		c = make(chan struct{})
		s.waits[number] = c
	}
	return nil, c, s.attached, nil
}

// used notes that a link has used what take returned.
func (s *Store) used(link, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, t := s.entries[number], s.links[link]
	if h == nil || t == nil {
		return // the sender dropped it: it is no friend of ours
	}
	h.pins--
	t.used++
	t.dirty = true
	before := s.unsaid
	s.unsaid += len(h.values)
	if before == 0 || before < sayFrom && s.unsaid >= sayFrom {
		s.wake(s.unsaid >= sayFrom)
	}
}

// room returns a buffer for values of that many bytes that are about to come. The
// sender counts both.
func (s *Store) room(number uint64, size, onLane int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number < s.next {
		return nil, corrupt("number %d where %d comes next", number, s.next)
	}
	if onLane == size {
		onLane = 0
	}
	if size <= 0 || size > s.limit-s.bytes-onLane {
		return nil, corrupt("%d bytes of values where %d of %d are taken", size, s.bytes, s.limit)
	}
	return s.spare.get(size), nil
}

// add takes in values that have come.
func (s *Store) add(number uint64, values []byte, onLane int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[number] = &held{values: values}
	s.bytes += len(values)
	s.next = number + 1
	s.received += uint64(onLane)
	if c := s.waits[number]; c != nil {
		delete(s.waits, number)
		close(c)
	}
}

// drop forgets values.
func (s *Store) drop(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.entries[number]; h != nil {
		s.forget(number, h)
	}
}

func (s *Store) forget(number uint64, h *held) {
	delete(s.entries, number)
	s.bytes -= len(h.values)
	if h.pins == 0 {
		s.spare.giveBack(h.values, s.limit-s.bytes)
	}
}

// keep forgets all values but those named.
func (s *Store) keep(numbers map[uint64]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, h := range s.entries {
		if !numbers[number] {
			s.forget(number, h)
		}
	}
}

// attach says whether there is a lane.
func (s *Store) attach(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached = is
	s.moved()
}

// moved wakes all waiters; the caller holds s.mu.
func (s *Store) moved() {
	for _, c := range s.waits {
		close(c)
	}
	clear(s.waits)
}

// close gives the memory back.
func (s *Store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory != nil {
		s.memory.Unreserve(s.limit)
	}
	s.limit, s.bytes, s.attached = 0, 0, false
	s.entries, s.spare = map[uint64]*held{}, spare{}
	s.moved()
}

// Counts returns the figures of now.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counts{ReceivedBytes: s.received, HeldBytes: uint64(s.bytes)}
}
