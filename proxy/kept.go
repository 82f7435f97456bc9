package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Keeper holds connections for the proxy after this one; [handover.Client] is one.
// Its methods are safe for use by several goroutines and do not block.
type Keeper interface {
	Most() int // how many it holds at most; 0: none, now
	Keep(id uint64, socket *net.TCPConn, page *os.File)
	Took(id uint64, socket *net.TCPConn, page *os.File) // it holds them already: it gave them
	Drop(id uint64)
}

// takenUpWithin is how long a connection waits at most to be taken up again. It waits
// only while somebody holds what the other proxy carried: see [lane].
const takenUpWithin = 10 * time.Second

// kept is the connections that can outlive this proxy, and their counts.
type kept struct {
	p      *Proxy
	unable error // why none can
	keeper atomic.Pointer[Keeper]
	// settled: all that a proxy before this one left was named.
	settled atomic.Bool
	lanes   lanes
	numbers atomic.Uint64 // the last one given to the keeper

	halt chan struct{} // closed when the proxy is about to end

	mu       sync.Mutex // guards the rest
	stopping bool
	all      map[*session]bool
	accepted map[keep.ID]*session // of all, those that the other proxy takes up again
	taken    uint64               // connections that were taken up again
	lost     uint64               // and that could not be
	ended    map[keep.Reason]uint64
}

func (k *kept) init(p *Proxy) {
	k.p, k.unable, k.halt = p, keep.Supported(), make(chan struct{})
	k.all, k.accepted, k.ended = map[*session]bool{}, map[keep.ID]*session{}, map[keep.Reason]uint64{}
	k.lanes.init(k)
	k.numbers.Store(uint64(time.Now().UnixNano())) // not those of a proxy before
}

// Keep has connections outlive this proxy with the help of a keeper, where the kernel
// can do it, and reports whether it can. Call it before connections come.
func (p *Proxy) Keep(k Keeper) bool {
	if p.kept.unable != nil {
		p.log.Warn("connections do not outlive a proxy that is killed", "error", p.kept.unable)
		return false
	}
	p.kept.keeper.Store(&k)
	return true
}

// holder returns the keeper, where one more connection can be held: not where
// requests are routed, whose streams are not what the process sends.
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

// session is one connection of the job as long as it lasts, over all its links.
type session struct {
	k      *kept
	page   *keep.Page
	number uint64 // the keeper's
	job    *net.TCPConn
	links  chan arrival // of an accepted one: a link to go on with

	mu   sync.Mutex  // guards the rest
	now  *connection // which carries it
	link *keptLink   // of now
	over bool
}

// keptLink is one link of a session.
type keptLink struct {
	session *session
	id      uint64 // the dialer's
	window  *keep.Window
	lane    *lane
	before  []*lane       // of the links before that were open, the latest last; at most mostBefore
	written atomic.Uint64 // bytes of the stream that the process here has got
	// Guarded by lane.mu:
	reported uint64 // of written
	farEnd   *uint64
	farTold  bool // the process at the far end has received the end
}

// beginSession makes a session of a connection that has a link; nil where it cannot be kept.
func (k *kept) beginSession(c *connection, holder Keeper, m keep.Meta) *session {
	job, ok := c.pipe.Job.(*net.TCPConn)
	if !ok {
		return nil
	}
	s, err := k.beginAt(c, job, holder, m)
	if err != nil {
		k.p.log.Warn("a connection would not outlive this proxy", "client", c.client, "destination", c.destination, "error", err)
	}
	return s
}

// beginAt starts the session of a connection that shall outlive this proxy: its page
// goes to the holder before a byte is carried, since what is carried without a page
// could not be resumed.
func (k *kept) beginAt(c *connection, job *net.TCPConn, holder Keeper, m keep.Meta) (s *session, err error) {
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

// attach makes c, which has a link, the one that carries the session on from where it
// stands.
func (s *session) attach(c *connection, at keep.Position, how *relay.Keeping) error {
	l := &keptLink{session: s, id: c.linkID}
	s.mu.Lock()
	if s.link != nil {
		l.before = s.link.openLanes()
	}
	s.mu.Unlock()
	l.written.Store(at.Written)
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
	if s.k.isStopping() {
		window.Off(keep.Stopping)
	}
	return nil
}

func (k *kept) noteOff(why keep.Reason) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended[why]++
}

func (k *kept) isStopping() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopping
}

// alters ends that the session is kept: what its process sends comes out otherwise.
func (s *session) alters() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.window.Off(keep.Values)
	}
}

// detach takes the session off its link, which broke, and returns the lanes while one
// of which is open somebody holds the other end; false where the session cannot be
// taken up.
func (s *session) detach() (held []*lane, ok bool) {
	s.mu.Lock()
	l := s.link
	s.now = nil
	s.mu.Unlock()
	s.k.lanes.removeLink(l)
	return l.openLanes(), l.window.Kept()
}

// mostBefore is how many lanes before the present one are remembered: as many proxies
// may be killed, one as soon as it has followed the other.
const mostBefore = 4

// openLanes returns the lanes of this link and those before that are open.
func (l *keptLink) openLanes() (all []*lane) {
	for _, n := range append(l.before[:len(l.before):len(l.before)], l.lane) {
		if !n.isDead() {
			all = append(all, n)
		}
	}
	return all[max(0, len(all)-mostBefore):]
}

// endSession forgets the session. The job's connection is not touched.
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

// stop ends that connections are kept: the proxy is about to end, in order.
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

// offer describes a new connection in its link's hello or answer.
func beginOffer(id keep.ID) link.Offer {
	return link.Offer{Codec: keep.Name, Data: keep.Offer{Kind: keep.Begin, Session: id}.Append(nil)}
}

// offered returns what the other proxy says of a connection that can be kept.
func offered(all []link.Offer) (o keep.Offer, ok bool) {
	for _, a := range all {
		if a.Codec == keep.Name {
			o, err := keep.ParseOffer(a.Data)
			return o, err == nil
		}
	}
	return o, false
}

// carryKept carries a session to its end, over one link after the other.
func (p *Proxy) carryKept(s *session, c *connection) error {
	for {
		err := p.carry(c)
		if !errors.Is(err, relay.ErrBroken) {
			s.endSession()
			return err
		}
		if c, err = s.goOn(err); err != nil {
			s.k.countTaken(false)
			relay.Reset(s.job)
			s.endSession()
			return fmt.Errorf("%s to %s: %w", s.page.Meta().Client, s.page.Meta().Destination, err)
		}
		s.k.countTaken(true)
	}
}

func (k *kept) countTaken(ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ok {
		k.taken++
	} else {
		k.lost++
	}
}
