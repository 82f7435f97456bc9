package shared

import (
	"bytes"
	"container/list"
	"math/bits"
	"net/netip"
	"sync"
	"time"
)

// A Source is the sending end of a group: the values that the [Store] at the other end
// has, or is about to get, and which links refer to them. It holds that
//
//   - bytes is the sum of its entries' sizes, and at most limit, as the Store's is;
//   - an entry is dropped only when it was written and no link has a reference to it
//     that was not used;
//   - numbers ascend in order, which is also that of the queue.
//
// A Source is safe for use by several goroutines.
type Source struct {
	memory Reserver // nil: no bound
	most   int      // bytes that may be kept at most, whatever is granted

	mu       sync.Mutex // guards the rest
	limit    int        // bytes granted
	asked    int        // bytes asked for, of which nothing was heard yet; 0: none
	denied   int        // bytes that were asked for in vain
	denials  int        // times that it was not asked again for them
	bytes    int
	attached bool // there is a lane
	entries  map[uint64]*entry
	latest   map[Subject]*entry
	order    list.List // of entries, the oldest first
	next     uint64    // number of the next entry
	outlets  map[uint64]*Outlet
	places   map[netip.AddrPort]uint64 // processes that are answered, a bit each
	answered uint64                    // these bits
	expects  bool                      // several are about to be
	begun    bool                      // there was a lane, or it was waited for in vain
	queue    []frame                   // for the lane
	queued   int                       // bytes of it, and of the entry being written
	changed  chan struct{}             // closed when there is more room in memory or lane; nil: nobody waits
	tight    bool                      // waiting for room was in vain, and none was made since
	lessons  lessons
	always   bool // there are no trials
	trial    trial
	counts   Counts
	spare    spare
	wake     func() // is called when there is something in the queue
	now      func() time.Time
}

// entry is values that the other end has or gets.
type entry struct {
	number  uint64
	subject Subject
	values  []byte
	form    byte   // of packed
	packed  []byte // what goes over the lane; nil: values
	refs    int    // references that were not used yet
	pins    int    // comparisons under way
	had     uint64 // places that were referred to it
	again   bool   // it was of use to a second process
	old     bool   // there are later values of its subject
	written bool
	at      *list.Element
}

func (e *entry) size() int { return len(e.values) + len(e.packed) }

// onLane is what the entry takes there.
func (e *entry) onLane() []byte {
	if e.form != Plain {
		return e.packed
	}
	return e.values
}

const (
	// queueBytes are written to the lane before another answer waits for it.
	queueBytes = 1 << 20
	// firstLimit is granted to begin with, where there is memory.
	firstLimit = 16 << 20
	// lookAt is how many of the oldest entries are looked at for one to be dropped.
	lookAt = 256
)

// NewSource returns a Source that has sent nothing. It keeps most bytes at most.
func NewSource(most int, memory Reserver) *Source {
	return &Source{
		memory: memory, most: most, entries: map[uint64]*entry{}, latest: map[Subject]*entry{}, outlets: map[uint64]*Outlet{},
		places: map[netip.AddrPort]uint64{}, wake: func() {}, now: time.Now,
	}
}

// An Outlet is the sending end of a link of the group. It is for one goroutine, but for
// Abort.
type Outlet struct {
	source *Source
	link   uint64
	place  uint64 // its process's bit
	abort  chan struct{}
	once   sync.Once
	tried  bool // Wants has said yes of this message
	// Guarded by source.mu:
	refs    []*entry // that were not used yet, in order
	pending int      // bytes of their values
	used    uint64   // references that were
	ended   bool     // here
}

// Join returns the Outlet of a link to a process.
func (s *Source) Join(link uint64, to netip.AddrPort) *Outlet {
	s.mu.Lock()
	defer s.mu.Unlock()
	place, ok := s.places[to]
	if !ok {
		place = 1 << min(len(s.places), 63)
		if len(s.places) < maxPlaces {
			s.places[to] = place
		}
	}
	o := &Outlet{source: s, link: link, place: place, abort: make(chan struct{})}
	s.outlets[link] = o
	return o
}

// maxPlaces bounds the processes that are distinguished; those beyond it count as one.
const maxPlaces = 1 << 10

// Abort ends the Outlet's waiting, now and later: its link is reset.
func (o *Outlet) Abort() { o.once.Do(func() { close(o.abort) }) }

// Close notes that nothing is referred to any more on the link. What was is kept until
// the other end has used it.
func (o *Outlet) Close() {
	o.Abort()
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	o.ended = true
	if len(o.refs) == 0 {
		delete(s.outlets, o.link)
	}
}

// sharing reports whether there is a lane, and more than one process to share with; the
// caller holds s.mu.
func (s *Source) sharing(o *Outlet) bool {
	s.answered |= o.place
	if s.answered == o.place && !s.expects {
		return false
	}
	if s.attached {
		return true
	}
	s.wake() // it may have to be made
	if s.begun {
		s.plain(NoLane)
	}
	return !s.begun
}

// Expect says whether several processes are about to be answered: then the lane is made
// before they are, where the group has links to several.
func (s *Source) Expect(several bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expects = several && len(s.places) > 1; s.expects {
		s.wake()
	}
}

// waiter returns a channel that is closed at the next change; the caller holds
// s.mu.
func (s *Source) waiter() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *Source) plain(why string) {
	if s.counts.Plain == nil {
		s.counts.Plain = map[string]uint64{}
	}
	s.counts.Plain[why]++
}

// Wants reports whether values are to be shown to Refer that would go as they are
// otherwise.
func (o *Outlet) Wants(subject Subject) bool {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	o.tried = false
	if !s.sharing(o) {
		return false
	}
	if ok := s.wants(o, subject); !ok {
		s.countAnswer(subject.Bytes)
		return false
	}
	return true
}

// fits reports whether values of n bytes may be kept; if not, more is asked for.
func (s *Source) fits(n int) bool {
	if s.attached && 2*n > s.limit {
		s.ask(2 * n)
		return false
	}
	return true
}

// mayFit is fits where it may come to that: there is no lane yet, or more is asked for.
func (s *Source) mayFit(n int) bool { return s.fits(n) || 2*n <= s.asked }

// askAgainOneIn is how often more is asked for that was denied.
const askAgainOneIn = 1024

// ask requests that many bytes, or twice as many as there are, unless it is
// requested already.
func (s *Source) ask(least int) {
	want := min(max(least, 2*s.limit), s.most)
	if want <= s.limit || s.asked > 0 || !s.attached {
		return
	}
	if want <= s.denied {
		if s.denials++; s.denials%askAgainOneIn != 0 {
			return
		}
	}
	s.asked = want
	s.enqueue(frame{kind: kindWant, number: uint64(want)}, 0)
}

func (s *Source) enqueue(f frame, size int) {
	s.queue = append(s.queue, f)
	s.queued += size
	s.wake()
}

// find looks for values that the other end has, if the link may have a reference more.
func (o *Outlet) find(subject Subject, values []byte) (number uint64, found bool) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.latest[subject]
	if e == nil || !s.attached || !s.mayRefer(o, len(values)) {
		return 0, false
	}
	e.pins++
	s.mu.Unlock()
	same := bytes.Equal(e.values, values)
	s.mu.Lock()
	e.pins--
	if s.latest[subject] != e {
		return 0, false
	}
	if !same {
		s.supersede(e)
		return 0, false
	}
	e.again = true
	s.counts.Referred++
	s.counts.SparedBytes += uint64(len(values))
	s.refer(o, e)
	return e.number, true
}

// mayRefer reports whether a link may have a reference more to n bytes.
func (s *Source) mayRefer(o *Outlet, n int) bool {
	return o.pending == 0 || o.pending+n <= max(s.limit/4, min(s.limit/2, firstLimit))
}

func (s *Source) refer(o *Outlet, e *entry) {
	o.refs = append(o.refs, e)
	o.pending += len(e.values)
	e.refs++
	e.had |= o.place
}

// supersede records that an entry's values are outdated.
func (s *Source) supersede(e *entry) {
	e.old = true
	delete(s.latest, e.subject)
	s.lessons.learn(e.subject, e.again)
	s.dropOld(e)
}

// dropOld drops an entry that nobody will refer to, once nobody does.
func (s *Source) dropOld(e *entry) {
	if e.old && e.refs == 0 && e.written && s.attached {
		s.drop(e)
	}
}

// put keeps values and has them sent, with a reference of the Outlet's link. It reports
// false where there is no room, or others were kept in between.
func (o *Outlet) put(subject Subject, values []byte, form byte, packed []byte) (number uint64, onLane int, ok bool) {
	s := o.source
	s.mu.Lock()
	b, p := s.spare.get(len(values)), []byte(nil)
	if form != Plain {
		p = s.spare.get(len(packed))
	}
	s.mu.Unlock()
	copy(b, values)
	copy(p, packed)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &entry{subject: subject, values: b, form: form, packed: p}
	if !s.attached || s.latest[subject] != nil || !s.makeRoom(len(b)) {
		s.recycle(e)
		return 0, 0, false
	}
	if len(p) > 0 && !s.makeRoom(e.size()) { // there is none for both forms
		s.spare.giveBack(p, s.limit-s.bytes)
		e.form, e.packed = Plain, nil
	}
	e.number = s.next
	s.next++
	s.bytes += e.size()
	s.entries[e.number], s.latest[subject] = e, e
	e.at = s.order.PushBack(e)
	s.refer(o, e)
	s.counts.Sent++
	s.counts.SentBytes += uint64(len(e.onLane()))
	s.enqueue(frame{kind: kindPut, number: e.number, entry: e}, len(e.onLane()))
	return e.number, len(e.onLane()), true
}

// makeRoom drops what it can until n bytes more are within the limit.
func (s *Source) makeRoom(n int) bool {
	if s.bytes+n > s.limit/4*3 {
		s.ask(s.bytes + n)
	}
	for s.bytes+n > s.limit {
		e := s.victim()
		if e == nil {
			return false
		}
		s.drop(e)
	}
	return true
}

// victim returns the entry to be dropped first: one that all processes had, or else,
// unless there may be more room soon, the oldest; nil where all are under way.
func (s *Source) victim() (oldest *entry) {
	everybody := bits.OnesCount64(s.answered)
	at := s.order.Front()
	for range lookAt {
		if at == nil {
			break
		}
		e := at.Value.(*entry)
		at = at.Next()
		if e.refs > 0 || !e.written {
			continue
		}
		if bits.OnesCount64(e.had) >= everybody {
			return e
		}
		if oldest == nil && s.asked == 0 {
			oldest = e
		}
	}
	return oldest
}

// drop forgets an entry at both ends.
func (s *Source) drop(e *entry) {
	if !e.old {
		e.old = true
		delete(s.latest, e.subject)
		s.lessons.learn(e.subject, e.again)
	}
	s.order.Remove(e.at)
	delete(s.entries, e.number)
	s.bytes -= e.size()
	s.recycle(e)
	if s.attached {
		s.enqueue(frame{kind: kindDrop, number: e.number}, 0)
	}
}

// recycle takes an entry's buffers back, unless somebody still compares with them.
func (s *Source) recycle(e *entry) {
	if e.pins > 0 {
		return
	}
	for _, b := range [][]byte{e.values, e.packed} {
		if b != nil {
			s.spare.giveBack(b, s.limit-s.bytes)
		}
	}
}
