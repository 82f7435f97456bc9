package shared

import (
	"bytes"
	"container/list"
	"math/bits"
	"net/netip"
	"sync"
	"time"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// A Source is the sending end of a group: the values that the [Store] at the other end has,
// or is about to get, and which links refer to them. It holds that
//
//   - bytes is the sum of its entries' and valid tables' sizes, and at most limit, as the
//     Store's is;
//   - an entry is dropped only after it was written and when no link has an unused
//     reference to it;
//   - numbers ascend in order, which is also that of the queue;
//   - latest has at most one entry of each subject, the one whose values were put last.
//
// So everything that is sent to the Store follows from what was queued before, and the
// Source knows how much memory the Store uses at any time. A Source is safe for concurrent
// use.
type Source struct {
	memory Reserver // nil: no bound
	most   int      // bytes that may be kept at most, whatever is granted
	least  int      // size of the smallest values that are shared
	// perByte returns how many nanoseconds the link takes for a byte; nil: it does not matter
	perByte func() (float64, bool)

	// coding is held while an answer is encoded by key and queued; before mu. It guards the
	// tables' contents and the buffers of encoding.
	coding               sync.Mutex
	known, fresh, packed []byte

	mu         sync.Mutex // guards the rest
	limit      int        // bytes granted
	asked      int        // bytes asked for and not answered yet; 0: none
	denied     int        // bytes last asked for in vain
	denials    int        // times that they were needed again and not asked for
	bytes      int
	attached   bool // there is a lane, and the other end has listed its entries
	entries    map[uint64]*entry
	latest     map[Subject]*entry
	order      list.List // of entries, the oldest first
	next       uint64    // number of the next entry
	outlets    map[uint64]*Outlet
	places     map[netip.AddrPort]uint64 // processes that are answered, a bit each
	answered   uint64                    // the bits of the processes answered so far
	expects    bool                      // several processes are about to be answered
	begun      bool                      // there was a lane, or it was waited for in vain
	queue      []frame                   // for the lane
	queued     int                       // bytes of the queue, and of the frames being written
	changed    chan struct{}             // closed when there is more room in memory or lane; nil: nobody waits
	tight      bool                      // waiting for room was in vain, and none was made since
	lessons    lessons
	tables     map[tableKind]*tabled
	tableBytes int           // of valid tables
	trial      *payoff.Trial // nil: values are shared in any case
	speed      speed
	counts     Counts
	spare      spare
	wake       func() // called with mu held when the lane is to be made, or to write its queue; must not block
	deliver    func() // called without mu after values were queued: has the lane write its queue
	pending    int    // bytes of the values of all unused references
	now        func() time.Time
}

// entry is values that the other end has or is about to get. Its bytes never change while
// it is in entries.
type entry struct {
	number  uint64
	subject Subject
	values  []byte
	form    byte   // of packed
	packed  []byte // sent over the lane in place of values; nil: values are
	refs    int    // unused references of all links
	pins    int    // comparisons in progress, without the lock
	had     uint64 // the bits of the processes that were referred to it
	again   bool   // it was of use to a second process
	old     bool   // there are later values of its subject
	written bool   // to the lane that is attached
	at      *list.Element
}

func (e *entry) size() int { return len(e.values) + len(e.packed) }

// onLane returns the bytes in which the entry is sent over the lane.
func (e *entry) onLane() []byte {
	if e.form != Plain {
		return e.packed
	}
	return e.values
}

const (
	// queueBytes is how many bytes may wait for the lane before another answer has to wait.
	queueBytes = 1 << 20
	// writtenHere is how many bytes may be on their way for an answer's own goroutine to write to
	// the lane. A socket's buffers have room for as many.
	writtenHere = 64 << 10
	// firstLimit is granted to begin with, if there is memory.
	firstLimit = 16 << 20
	// lookAt bounds the search for an entry to evict: that many of the oldest are looked
	// at.
	lookAt = 256
)

// NewSource returns a Source that has sent nothing. It keeps at most most bytes.
func NewSource(most int, memory Reserver) *Source {
	return &Source{
		memory: memory, most: most, least: Least, entries: map[uint64]*entry{}, latest: map[Subject]*entry{}, outlets: map[uint64]*Outlet{}, tables: map[tableKind]*tabled{},
		places: map[netip.AddrPort]uint64{}, wake: func() {}, deliver: func() {}, now: time.Now,
	}
}

// SetLeast sets the size of the smallest values that are shared, before the first link joins.
func (s *Source) SetLeast(bytes int) { s.least = max(bytes, Fewest) }

// SetPerByte sets what returns how many nanoseconds the link to the other host takes for a byte, and
// false while that is unknown, before the first link joins. It is called with locks held, and must
// not block.
func (s *Source) SetPerByte(perByte func() (float64, bool)) { s.perByte = perByte }

// An Outlet is the sending end of a link of the group. It is for one goroutine, except for
// Abort.
type Outlet struct {
	source *Source
	link   uint64
	place  uint64 // its process's bit
	abort  chan struct{}
	once   sync.Once
	tried  bool // Wants has decided to try this message
	// Guarded by source.mu:
	refs    []*entry // unused references, in the order in which they were sent
	pending int      // bytes of their values
	used    uint64   // references used so far
	ended   bool     // either end has closed: there are no more references
}

// Join returns the Outlet of a link to a process of the other host. Several links may lead
// to one process.
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

// maxPlaces bounds the processes whose addresses are remembered. From the 64th on all share
// one bit, which only makes entries live a little longer than they need to.
const maxPlaces = 1 << 10

// Abort ends the Outlet's waiting, now and later: its link is about to be reset. Any
// goroutine may call it.
func (o *Outlet) Abort() { o.once.Do(func() { close(o.abort) }) }

// Close records that the link refers to nothing any more. Entries that it has
// referred to are kept until the other end has used them or says that the link is
// gone.
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

// sharing reports whether there is more than one process to share with, and a lane or the
// hope of one. The caller holds s.mu.
func (s *Source) sharing(o *Outlet) bool {
	if !s.answersSeveral(o) && !s.expects {
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

// answersSeveral counts the Outlet's process as one that is answered, and reports whether others
// are, too. The caller holds s.mu.
func (s *Source) answersSeveral(o *Outlet) bool {
	s.answered |= o.place
	return s.answered != o.place
}

// Expect says whether several processes are about to be answered. If so, and if the group
// has links to several, the lane is made before the first answer rather than after it.
func (s *Source) Expect(several bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expects = several && len(s.places) > 1; s.expects {
		s.wake()
	}
}

// waiter returns a channel that is closed at the next change. The caller holds s.mu.
func (s *Source) waiter() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// plain counts an answer that goes as it is.
func (s *Source) plain(why string) {
	if s.counts.Plain == nil {
		s.counts.Plain = map[string]uint64{}
	}
	s.counts.Plain[why]++
}

// Wants reports whether the caller should hold values that it would not hold otherwise and
// show them to Refer.
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

// fits reports whether values of n bytes may be kept at all; if not, more is asked for. An
// entry may take half of the limit, so that one can arrive while another is in use.
func (s *Source) fits(n int) bool {
	if s.attached && 2*n > s.limit {
		s.ask(2 * n)
		return false
	}
	return true
}

// mayFit is fits, or the chance of it: there is no lane yet, or more was asked for.
func (s *Source) mayFit(n int) bool { return s.fits(n) || 2*n <= s.asked }

// askAgainOneIn is how often more is asked for again that was denied.
const askAgainOneIn = 1024

// ask requests at least least bytes, or twice as many as are granted, unless a request is
// pending.
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
	s.wake()
}

// enqueue adds a frame to the queue; size is what its values take on the lane. Frames that
// nobody waits for, as those that drop entries, go with the next that somebody does. The caller
// holds s.mu.
func (s *Source) enqueue(f frame, size int) {
	s.queue = append(s.queue, f)
	s.queued += size
}

// find looks for equal values at the other end, and refers to them if the link may have one
// more reference.
func (o *Outlet) find(subject Subject, values []byte) (number uint64, found bool) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.latest[subject]
	if e == nil || !s.attached || o.ended || !s.mayRefer(o, len(values)) {
		return 0, false
	}
	// Comparing takes as long as a copy. It is done without the lock, so that other links
	// go on; the pin keeps the entry's memory from being reused if it is dropped meanwhile.
	e.pins++
	s.mu.Unlock()
	same := bytes.Equal(e.values, values)
	s.mu.Lock()
	e.pins--
	// Dropped, or replaced, in between, or the link has ended. The caller looks again.
	if s.latest[subject] != e || o.ended {
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

// mayRefer reports whether a link may have one more reference, to n bytes. A quarter of the
// memory is a link's at most, or half of a small one, so that a process that does not read
// cannot occupy all of it. One reference is always allowed.
func (s *Source) mayRefer(o *Outlet, n int) bool {
	return o.pending == 0 || o.pending+n <= max(s.limit/4, min(s.limit/2, firstLimit))
}

// refer adds a reference to an entry. The caller holds s.mu and sends the number.
func (s *Source) refer(o *Outlet, e *entry) {
	o.refs = append(o.refs, e)
	o.pending += len(e.values)
	s.pending += len(e.values)
	e.refs++
	e.had |= o.place
}

// supersede records that an entry's values are outdated: later answers will not be equal to
// them.
func (s *Source) supersede(e *entry) {
	e.old = true
	delete(s.latest, e.subject)
	s.lessons.learn(e.subject, e.again)
	s.dropOld(e)
}

// dropOld drops an outdated entry once no link refers to it.
func (s *Source) dropOld(e *entry) {
	if e.old && e.refs == 0 && e.written && s.attached {
		s.drop(e)
	}
}

// put keeps values and queues them for the lane, with a reference of the Outlet's link. It
// reports false if there is no room, the link has ended, or values of the subject were put in
// between. Values by key are of a table, which must still be valid. If they do not stay, no other
// link is referred to them.
func (o *Outlet) put(subject Subject, values []byte, form byte, packed []byte, of *tabled, stays bool) (number uint64, onLane int, ok bool) {
	s := o.source
	s.mu.Lock()
	b, p := s.spare.get(len(values)), []byte(nil)
	if form != Plain {
		p = s.spare.get(len(packed))
	}
	s.mu.Unlock()
	// Copied without the lock, which only buffers and bookkeeping need.
	copy(b, values)
	copy(p, packed)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &entry{subject: subject, values: b, form: form, packed: p}
	if !s.attached || o.ended || stays && s.latest[subject] != nil || !s.makeRoom(len(b)) || of != nil && (!of.valid || !s.makeRoom(e.size())) {
		s.recycle(e)
		return 0, 0, false
	}
	if len(p) > 0 && !s.makeRoom(e.size()) { // room for the values, but not for both forms
		s.dropPacked(e)
	}
	e.number = s.next
	s.next++
	s.bytes += e.size()
	s.entries[e.number] = e
	if e.old = !stays; stays {
		s.latest[subject] = e
	}
	e.at = s.order.PushBack(e)
	s.refer(o, e)
	s.counts.Sent++
	s.counts.SentBytes += uint64(len(e.onLane()))
	s.enqueue(frame{kind: kindPut, number: e.number, entry: e}, len(e.onLane()))
	return e.number, len(e.onLane()), true
}

// makeRoom evicts entries until n more bytes are within the limit, and reports whether it
// could. From three quarters on more is asked for, which may come before it is needed. The
// caller holds s.mu.
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

// victim returns the entry to evict first: one that all processes had, or else the oldest,
// unless more memory may be granted soon; nil if all are in use.
func (s *Source) victim() (oldest *entry) {
	everybody := bits.OnesCount64(s.answered)
	at := s.order.Front()
	for range lookAt {
		if at == nil {
			break
		}
		e := at.Value.(*entry)
		at = at.Next()
		// In use, or still to be written: a reference may be on its way.
		if e.refs > 0 || !e.written {
			continue
		}
		if bits.OnesCount64(e.had) >= everybody {
			return e
		}
		// While more memory is asked for nothing is evicted that another process may
		// still want.
		if oldest == nil && s.asked == 0 {
			oldest = e
		}
	}
	return oldest
}

// drop forgets an entry at both ends. The number goes to the lane behind all that refers to
// it. The caller holds s.mu.
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

// dropPacked has an entry sent as it is.
func (s *Source) dropPacked(e *entry) {
	s.spare.giveBack(e.packed, s.limit-s.bytes)
	e.form, e.packed = Plain, nil
}

// recycle keeps an entry's buffers for other values, unless somebody still compares with
// them.
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
