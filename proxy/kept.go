package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Keeper holds sockets and pages for the proxy after this one; [handover.Client] is one. Its
// methods are safe for concurrent use and do not block. It duplicates what it is given; the
// caller keeps its own.
type Keeper interface {
	Most() int // how many it can hold in total; 0: none, now
	Keep(id uint64, socket *net.TCPConn, page *os.File)
	Took(id uint64, socket *net.TCPConn, page *os.File) // it holds them already: it gave them to this proxy
	Drop(id uint64)
}

// takenUpWithin is how long a connection waits to be resumed. It waits only while somebody
// holds what the other proxy carried; see [lane].
const takenUpWithin = 10 * time.Second

// kept has the connections that can outlive this proxy, and their counts.
//
// Locks are acquired in the order kept.mu, session.mu, and kept.mu, lanes.mu, lane.mu. None
// is held while a window is called, whose own lock covers system calls.
type kept struct {
	p      *Proxy
	unable error                  // why none can: the kernel lacks something; nil: they can
	keeper atomic.Pointer[Keeper] // nil: connections do not outlive this proxy
	// settled means that everything that the previous proxy left has been named. Until then a
	// link that resumes an unknown session is not refused for good.
	settled atomic.Bool
	lanes   lanes
	numbers atomic.Uint64 // the last number given to the keeper

	halt chan struct{} // closed when the proxy is about to end

	mu       sync.Mutex // guards the rest
	stopping bool       // no connection is kept any more
	all      map[*session]bool
	accepted map[keep.ID]*session   // by id: those of all that the other proxy resumes
	taken    uint64                 // resumed connections
	lost     uint64                 // connections that could not be resumed
	ended    map[keep.Reason]uint64 // connections that are not kept any more, by reason
}

// init prepares an empty kept.
func (k *kept) init(p *Proxy) {
	k.p, k.unable, k.halt = p, keep.Supported(), make(chan struct{})
	k.all, k.accepted, k.ended = map[*session]bool{}, map[keep.ID]*session{}, map[keep.Reason]uint64{}
	k.lanes.init(k)
	k.numbers.Store(uint64(time.Now().UnixNano())) // not those of a proxy before
}

// Keep has connections outlive this proxy with the help of a keeper, and returns false where
// the kernel cannot do it. Call it before connections come.
func (p *Proxy) Keep(k Keeper) bool {
	if p.kept.unable != nil {
		p.log.Warn("connections would not survive a kill of this proxy", "error", p.kept.unable)
		return false
	}
	p.kept.keeper.Store(&k)
	return true
}

// holder returns the keeper if one more connection can be held, and nil otherwise. With
// routing none can: the stream on the link is not what the process sends, so its bytes in the
// kernel's queue do not say what was sent.
func (k *kept) holder() Keeper {
	holder := k.keeper.Load()
	if holder == nil || k.p.opts.Jobs != nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// The lanes are held too.
	if k.stopping || len(k.all)+k.lanes.count() >= (*holder).Most() {
		return nil
	}
	return *holder
}

// session is one connection of the job as long as it lasts, over all of its links.
//
// Over each link it is carried (now is set, a goroutine runs carry) or waits for the next
// link (now is nil). The same goroutine does both, by turns: carryKept. A link breaks in one
// of these ways:
//
//   - reading or writing it fails: relay returns ErrBroken, and the dialer's end dials again;
//   - the other end dials again, having noticed first: give puts the new link into links and
//     breaks the old one;
//   - this proxy is killed: the next one takes the session over from the keeper (takeOver).
//
// Both ends then exchange their positions (keep.Offer). The bytes between what an end has
// consumed and what it has read are still in its kernel's queue and are read again; the other
// end skips those of them that its process has got already. So nothing is lost and nothing
// comes twice, whichever proxies were killed.
//
// The session ends when the streams do, when the window is off, or when nobody holds the
// other end (lanes). mu guards only what carries it now; the page and the window synchronize
// themselves.
type session struct {
	k      *kept
	page   *keep.Page // shared memory that the keeper holds too
	number uint64     // the keeper's
	job    *net.TCPConn
	links  chan arrival // of an accepted one: the link to go on with

	mu   sync.Mutex  // guards the rest
	now  *connection // the connection that carries it; nil: it waits for a link
	link *keptLink   // of now, or the last one
	over bool
}

// keptLink is one link of a session.
type keptLink struct {
	session *session
	id      uint64 // the dialer's
	began   uint64 // written, when the link began
	window  *keep.Window
	lane    *lane         // over which its bytes are acknowledged
	before  []*lane       // lanes of earlier links that were still open, the latest last; at most mostBefore
	written atomic.Uint64 // bytes of the stream that the process here has got
	// The rest is guarded by lane.mu. reported is written as last acknowledged.
	reported uint64  // of written
	farEnd   *uint64 // where the far process's stream ends, as announced
	farTold  bool    // the process at the far end has received the end
}

// beginSession makes a connection that has its link a session, and returns nil where it
// cannot be kept.
func (k *kept) beginSession(c *connection, holder Keeper, m keep.Meta) *session {
	job, ok := c.pipe.Job.(*net.TCPConn)
	if !ok || c.line() != nil {
		return nil // a line's messages could not be sent again
	}
	s, err := k.beginAt(c, job, holder, m)
	if err != nil {
		k.p.log.Warn("a connection would not survive a kill of this proxy", "client", c.client, "destination", c.destination, "error", err)
	}
	return s
}

// beginAt starts a session. Its page goes to the holder before a byte is carried, since what
// is carried without a page could not be resumed.
func (k *kept) beginAt(c *connection, job *net.TCPConn, holder Keeper, m keep.Meta) (s *session, err error) {
	// Before anything is written to the socket: afterwards the kernel's count of acknowledged
	// bytes no longer shows how many of them were the SYN.
	if m.SYN, err = keep.SYN(job); err != nil {
		return nil, err
	}
	m.Client, m.Destination, m.Job, m.Origin = c.client, c.destination, c.job, c.origin
	page, err := keep.NewPage(m)
	if err != nil {
		return nil, err
	}
	if s = k.enter(page, job, k.numbers.Add(1)); s == nil {
		return nil, page.Close()
	}
	holder.Keep(s.number, job, page.File())
	if err := s.attach(c, keep.Position{}, &relay.Keeping{}); err != nil {
		s.endSession()
		c.pipe.Keeping = nil
		return nil, err
	}
	return s, nil
}

// enter registers a session, so that links that resume it find it. It returns nil where the
// proxy is about to end, or another session has the id.
func (k *kept) enter(page *keep.Page, job *net.TCPConn, number uint64) *session {
	s := &session{k: k, page: page, job: job, number: number, links: make(chan arrival, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	m := page.Meta()
	if k.stopping || !m.Dialed && k.accepted[m.Session] != nil {
		return nil
	}
	k.all[s] = true
	if !m.Dialed {
		k.accepted[m.Session] = s
	}
	return s
}

// attach makes c, which has a link, the connection that carries the session on from position
// at.
func (s *session) attach(c *connection, at keep.Position, how *relay.Keeping) error {
	l := &keptLink{session: s, id: c.linkID, began: at.Written}
	s.mu.Lock()
	if s.link != nil {
		// The lanes of earlier links stay: see fallBack.
		l.before = s.link.openLanes()
	}
	s.mu.Unlock()
	l.written.Store(at.Written)
	// A window begins where the kernel's queue does, that is at what this end has consumed.
	window, err := keep.NewWindow(s.job, s.page, at.Consumed, func(why keep.Reason) { s.k.noteOff(why) })
	if err != nil {
		return err
	}
	l.window, how.Window = window, window
	how.Wrote, how.Ended, how.FarEnded, how.Closed, how.FarClosed = l.wrote, l.announceEnd, l.farEnded, l.closed, l.farClosed
	c.pipe.Keep(how)
	if l.lane, err = s.k.lanes.addLink(l, c); err != nil {
		window.Off(keep.NoAcks)
		return err
	}
	s.mu.Lock()
	s.now, s.link = c, l
	s.mu.Unlock()
	// stop may have run between enter and now, and has not seen this window.
	if s.k.isStopping() {
		window.Off(keep.Stopping)
	}
	return nil
}

// noteOff counts a connection that is not kept any more.
func (k *kept) noteOff(why keep.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended[why]++
}

// isStopping reports whether the proxy is about to end.
func (k *kept) isStopping() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopping
}

// alters ends keeping the session: a codec is about to change what its process sends, so that
// bytes in the kernel's queue would come out differently when sent again.
func (s *session) alters() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.window.Off(keep.Values)
	}
}

// detach takes the session off its broken link. It returns the lanes that are still open,
// each of which proves that somebody holds the other end, and false where the session cannot
// be resumed.
func (s *session) detach() (held []*lane, ok bool) {
	s.mu.Lock()
	l := s.link
	s.now = nil
	s.mu.Unlock()
	s.k.lanes.removeLink(l)
	return l.openLanes(), l.window.Kept()
}

// mostBefore bounds the earlier lanes that are remembered: that many proxies may be killed,
// each as soon as it has followed the one before.
const mostBefore = 4

// openLanes returns those lanes of this link and of earlier ones that are open.
func (l *keptLink) openLanes() (all []*lane) {
	for _, n := range append(l.before[:len(l.before):len(l.before)], l.lane) {
		if !n.isDead() {
			all = append(all, n)
		}
	}
	return all[max(0, len(all)-mostBefore):]
}

// endSession forgets the session and releases what the keeper holds of it. The job's
// connection is not touched.
func (s *session) endSession() {
	s.mu.Lock()
	l := s.link
	s.over = true
	s.mu.Unlock()
	if l != nil {
		s.k.lanes.removeLink(l)
		l.window.Off(keep.Over)
	}
	s.k.mu.Lock()
	m := s.page.Meta()
	delete(s.k.all, s)
	if s.k.accepted[m.Session] == s {
		delete(s.k.accepted, m.Session)
	}
	s.k.mu.Unlock()
	// Dropped last, so that a kill in between leaves a session that ends when the next proxy
	// resumes it, and not a process that waits forever.
	if holder := s.k.keeper.Load(); holder != nil {
		(*holder).Drop(s.number)
	}
	select {
	case a := <-s.links:
		a.far.Close()
	default:
	}
	s.page.Close()
}

// stop ends the keeping of connections, because the proxy is about to end in order.
func (k *kept) stop() {
	k.mu.Lock()
	if !k.stopping {
		close(k.halt)
	}
	k.stopping = true
	var all []*session
	for s := range k.all {
		all = append(all, s)
	}
	k.mu.Unlock()
	// The other proxies learn it first, and take the ends of links that follow for orderly
	// ones.
	k.lanes.stop()
	for _, s := range all {
		s.mu.Lock()
		l := s.link
		s.mu.Unlock()
		if l != nil {
			l.window.Off(keep.Stopping)
		}
	}
}

// beginOffer returns the part of a hello or answer about a new session.
func beginOffer(id keep.ID) link.Offer {
	return link.Offer{Codec: keep.Name, Data: keep.Offer{Kind: keep.Begin, Session: id}.Append(nil)}
}

// offered returns that part of the other proxy's offers; false where there is none.
func offered(all []link.Offer) (o keep.Offer, ok bool) {
	for _, a := range all {
		if a.Codec == keep.Name {
			o, err := keep.ParseOffer(a.Data)
			return o, err == nil
		}
	}
	return o, false
}

// carryKept carries a session to its end, over one link after another.
func (p *Proxy) carryKept(s *session, c *connection) error {
	for {
		err := p.carry(c)
		if !errors.Is(err, relay.ErrBroken) {
			s.endSession()
			return err
		}
		// The link broke when nothing was left for it here. The other end, which may not know
		// that, can go on; one that does has forgotten the session, and nothing is lost.
		over := c.pipe.JobEnded() && c.pipe.Keeping.FarOver()
		next, err := s.goOn(err)
		switch {
		case err == nil:
			s.k.countTaken(true)
			c = next
			continue
		case over:
			s.endSession()
			s.job.Close()
			return nil
		}
		s.k.countTaken(false)
		sock.Reset(s.job)
		s.endSession()
		return fmt.Errorf("%s to %s: %w", s.page.Meta().Client, s.page.Meta().Destination, err)
	}
}

// countTaken counts a session that was resumed, or lost.
func (k *kept) countTaken(ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ok {
		k.taken++
	} else {
		k.lost++
	}
}
