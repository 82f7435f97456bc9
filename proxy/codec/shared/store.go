package shared

import (
	"maps"
	"sync"
)

// A Store is the receiving end of a group: values that came over its lane and that the
// sender has not dropped, and how many references each link has used. It holds that bytes
// is the sum of its entries' and tables' sizes, and at most limit. Entries arrive in ascending numbers.
//
// It decides nothing but its limit: the sender says what to keep and what to drop. It is
// safe for concurrent use; the lane's reader adds entries while links take them.
type Store struct {
	memory Reserver // nil: no bound
	most   int      // bytes that it may grant

	mu      sync.Mutex // guards the rest
	limit   int        // bytes granted
	bytes   int
	entries map[uint64]*held
	next    uint64 // all numbers below have come, or never will
	lanes   int    // lanes that exist or wait to take their place
	// Set while a lane is being read.
	attached bool
	links    map[uint64]*tally
	gone     map[uint64]bool          // links that have ended; true: the sender was informed on this lane
	unsaid   int                      // bytes of values used that the sender was not informed of
	grants   bool                     // the sender was not informed of limit
	waits    map[uint64]chan struct{} // closed when the number has come, or the lane began or ended
	spare    spare
	received uint64
	wake     func(soon bool) // called with mu held when there is something to send; must not block
}

// held is an entry.
type held struct {
	values []byte
	pins   int // links that are using the values
}

// tally is what a link has used.
type tally struct {
	used  uint64
	dirty bool // the sender was not informed of it
}

const (
	// sayFrom is how many bytes of used values have the sender informed at once: it may be
	// waiting for room.
	sayFrom = 256 << 10
	// maxGone bounds the links that are remembered to have ended.
	maxGone = 1 << 12
)

// NewStore returns a Store without values. It grants at most most bytes.
func NewStore(most int, memory Reserver) *Store {
	return &Store{
		memory: memory, most: most, entries: map[uint64]*held{}, links: map[uint64]*tally{}, gone: map[uint64]bool{},
		waits: map[uint64]chan struct{}{}, wake: func(bool) {},
	}
}

// grow raises the limit towards want as far as memory allows, halving the step until it
// fits, and has the sender informed, even if nothing has changed: the sender waits for an
// answer.
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

// leave records that a link has ended, and reports whether nothing needs the Store any
// more. The link may not have been bound: its first reference may have been on its way, for
// which the sender keeps values until it is informed.
func (s *Store) leave(link uint64) (unused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, link)
	if len(s.gone) >= maxGone {
		maps.DeleteFunc(s.gone, func(_ uint64, told bool) bool { return told })
	}
	if len(s.gone) >= maxGone {
		clear(s.gone)
	}
	s.gone[link] = false
	s.wake(true)
	return len(s.links) == 0 && s.lanes == 0
}

// take returns the values that a number stands for. They are pinned, and do not change
// until used is called. If they are still to come it returns a channel that is closed when
// to look again, and whether there is a lane to bring them.
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

// used records that a link has used what take returned. Small amounts are collected before
// the sender is informed.
func (s *Store) used(link, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, t := s.entries[number], s.links[link]
	if h == nil || t == nil {
		return // the sender dropped it although it was referred to, which it must not
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

// room returns a buffer for values of size bytes that are about to arrive, onLane bytes of
// them packed. The sender counts both against the limit, so that a sound one never exceeds
// it.
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

// resize counts a table that takes the place of another; sizes are in bytes.
func (s *Store) resize(before, after int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after > s.limit-(s.bytes-before) {
		return corrupt("a table of %d bytes where %d of %d are taken", after, s.bytes-before, s.limit)
	}
	s.bytes += after - before
	return nil
}

// add enters values that have arrived, and wakes the links that wait for them.
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

// drop removes an entry.
func (s *Store) drop(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.entries[number]; h != nil {
		s.forget(number, h)
	}
}

// forget removes an entry. A buffer that a link still uses is left to the collector.
func (s *Store) forget(number uint64, h *held) {
	delete(s.entries, number)
	s.bytes -= len(h.values)
	if h.pins == 0 {
		s.spare.giveBack(h.values, s.limit-s.bytes)
	}
}

// keep removes all entries but those named.
func (s *Store) keep(numbers map[uint64]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, h := range s.entries {
		if !numbers[number] {
			s.forget(number, h)
		}
	}
}

// attach records whether there is a lane, and has all waiters look again.
func (s *Store) attach(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached = is
	s.moved()
}

// moved wakes all waiters. The caller holds s.mu.
func (s *Store) moved() {
	for _, c := range s.waits {
		close(c)
	}
	clear(s.waits)
}

// close releases the memory.
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

// Counts returns the figures so far.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counts{ReceivedBytes: s.received, HeldBytes: uint64(s.bytes)}
}
