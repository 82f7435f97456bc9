package proxy

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// An acknowledgement is sent once it covers that many bytes, or has waited that
// long.
const (
	ackBytes  = 256 << 10
	ackWithin = 10 * time.Millisecond
	ackPause  = time.Millisecond // from one writing to the next
	maxLanes  = 4096
	// laneYoung is for how long a lane may not be held yet.
	laneYoung = time.Second
	// laneStays is for how long the lane of a killed proxy stays open at least.
	laneStays = time.Second
	// laneIdle is for how long a lane is kept that no link uses.
	laneIdle = 2 * time.Second
	// laneWithin is how long the dialer has to make one: on a busy machine its proxy may
	// get no processor for seconds.
	laneWithin = takenUpWithin
	// endWithin is how long the end of a link waits to hear that it is in order.
	endWithin = 200 * time.Millisecond
	// closeWithin is how long one waits to hear that its end was passed on.
	closeWithin = time.Second
)

// laneKey names a lane: of all links that this proxy dialed to another one, or that it
// accepted from it.
type laneKey struct {
	peer   relay.Instance
	dialed bool
}

// lanes are the links for acknowledgements.
type lanes struct {
	k    *kept
	work sync.WaitGroup

	mu  sync.Mutex // guards all
	all map[laneKey]*lane
}

func (ls *lanes) init(k *kept) { ls.k, ls.all = k, map[laneKey]*lane{} }

func (ls *lanes) count() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.all)
}

// A lane is a link over which two proxies acknowledge what was sent over the links
// that one of them dialed to the other. The keepers of both hold it too: it stays
// open when a proxy is killed, for as long as its connections are held for the next.
// So its end says that nothing is kept, and nobody waits in vain.
type lane struct {
	ls   *lanes
	key  laneKey
	made time.Time
	wake chan struct{}
	dead chan struct{} // closed at its end

	mu      sync.Mutex // guards the rest
	conn    net.Conn   // nil: it is not there yet
	number  uint64     // the keeper's
	page    *keep.Page
	links   map[uint64]*keptLink
	dirty   map[*keptLink]bool
	bytes   uint64 // that are not acknowledged yet
	say     []keep.Ack
	orderly bool // one of the proxies has said that it is about to end
	over    bool
	heard   chan struct{} // closed when the end of a link is heard of; nil: nobody waits
}

// addLink enters a connection's link, for which it makes the lane where there is none.
func (ls *lanes) addLink(l *keptLink, c *connection) (*lane, error) {
	key := laneKey{c.peer, l.session.page.Meta().Dialed}
	ls.mu.Lock()
	n := ls.all[key]
	if n == nil || n.isOver() {
		if len(ls.all) >= maxLanes {
			ls.mu.Unlock()
			return nil, reason.Errorf(reason.TooMany, "links to acknowledge over: %d", maxLanes)
		}
		n = ls.make(key)
		ls.work.Go(func() { n.serveLane(c.destination) })
	}
	ls.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isDead() {
		return nil, reason.Errorf(reason.ResetByFarSide, "the other proxy has gone")
	}
	n.links[l.id] = l // of a lane that has just ended it is said soon
	l.reported = l.written.Load()
	return n, nil
}

// make makes a lane that has no connection; the caller holds ls.mu.
func (ls *lanes) make(key laneKey) *lane {
	n := &lane{ls: ls, key: key, made: time.Now(), wake: make(chan struct{}, 1), dead: make(chan struct{}), links: map[uint64]*keptLink{}, dirty: map[*keptLink]bool{}}
	ls.all[key] = n
	return n
}

func (ls *lanes) removeLink(l *keptLink) {
	if l == nil || l.lane == nil {
		return
	}
	l.lane.removeLink(l)
	for _, n := range l.before {
		n.removeLink(l)
	}
}

func (n *lane) removeLink(l *keptLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[l.id] == l {
		delete(n.links, l.id)
	}
	delete(n.dirty, l)
	if len(n.links) == 0 && n.key.dialed && !n.over {
		time.AfterFunc(laneIdle, n.retire)
	}
}

func (n *lane) isOver() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.over
}

func (n *lane) isDead() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
}

// fallBack enters a link whose lane has ended in one of a link before: it is kept as
// long as that is open, since a proxy that is killed as soon as it has begun may not
// have had its own lane held. It reports false where all have ended.
func (l *keptLink) fallBack() bool {
	for _, n := range l.before {
		n.mu.Lock()
		open := !n.over
		if open {
			n.links[l.id] = l
		}
		n.mu.Unlock()
		if open {
			return true
		}
	}
	return false
}

// retire ends a lane that no link has used for a while. One of a link that broke may be
// about to.
func (n *lane) retire() {
	if n.ls.k.waits() {
		time.AfterFunc(laneIdle, n.retire)
		return
	}
	n.ls.mu.Lock()
	defer n.ls.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.links) > 0 || n.over || n.ls.all[n.key] != n {
		return
	}
	delete(n.ls.all, n.key)
	n.over = true
	n.wakeWriter()
}

// stop says on all lanes that this proxy is about to end.
func (ls *lanes) stop() {
	for _, n := range ls.each() {
		n.mu.Lock()
		n.orderly = true
		n.mu.Unlock()
		n.tell(keep.Ack{Kind: keep.AckStops})
	}
}

func (ls *lanes) each() (all []*lane) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, n := range ls.all {
		all = append(all, n)
	}
	return all
}

// close waits for the lanes to end, once the proxy's life has.
func (ls *lanes) close() { ls.work.Wait() }

// announceEnd tells the other proxy that the link's end is in order.
func (l *keptLink) announceEnd() {
	l.lane.tell(keep.Ack{Link: l.id, Kind: keep.AckEnded, Offset: l.window.Peeked()})
}

// serveLane makes the lane, at the dialer's end, or waits for it, and uses it to its end.
func (n *lane) serveLane(host netip.AddrPort) {
	defer n.endLinks()
	if n.key.dialed {
		conn, err := n.ls.k.dialLane(host)
		if err != nil {
			n.ls.k.p.log.Debug("no link for acknowledgements", "to", host, "error", err)
			return
		}
		n.attachConn(conn)
	}
	late := time.NewTimer(laneWithin)
	defer late.Stop()
	for {
		n.mu.Lock()
		conn := n.conn
		n.mu.Unlock()
		if conn != nil {
			n.use(conn)
			return
		}
		select {
		case <-n.wake:
		case <-late.C:
			return
		case <-n.ls.k.p.life.Done():
			return
		}
	}
}

// attachConn gives the lane its connection, which the keeper holds too.
func (n *lane) attachConn(conn net.Conn) bool {
	k := n.ls.k
	holder := k.keeper.Load()
	tcp := tcpOf(conn)
	if holder == nil || tcp == nil {
		return false
	}
	page, err := keep.NewPage(keep.Meta{Lane: true})
	if err != nil {
		k.p.log.Warn("connections do not outlive a proxy that is killed", "error", err)
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over || n.conn != nil {
		page.Close()
		return false
	}
	n.conn, n.page, n.number = conn, page, k.numbers.Add(1)
	(*holder).Keep(n.number, tcp, page.File())
	n.wakeWriter()
	return true
}

// use writes and reads until the lane ends.
func (n *lane) use(conn net.Conn) {
	stop := context.AfterFunc(n.ls.k.p.life, func() { relay.Reset(conn) })
	defer stop()
	n.wakeWriter() // for what has come together
	var reading sync.WaitGroup
	reading.Go(func() {
		n.readAcks(conn)
		n.mu.Lock()
		n.over = true
		n.mu.Unlock()
		n.wakeWriter()
	})
	n.writeAcks(conn)
	relay.Reset(conn)
	reading.Wait()
}

// current are the links of now; the caller holds n.mu.
func (n *lane) current() (all []*keptLink) {
	for _, l := range n.links {
		all = append(all, l)
	}
	return all
}

// endLinks says that what went over the lane's links is kept no more.
func (n *lane) endLinks() {
	ls := n.ls
	ls.mu.Lock()
	if ls.all[n.key] == n {
		delete(ls.all, n.key)
	}
	ls.mu.Unlock()
	n.mu.Lock()
	n.over = true
	n.mu.Unlock()
	if time.Since(n.made) < laneYoung {
		// A proxy that is killed as soon as it has begun may not have had the lane
		// held: it says nothing yet.
		select {
		case <-time.After(laneYoung):
		case <-ls.k.halt:
		}
	}
	n.mu.Lock()
	all, page, number := n.current(), n.page, n.number
	n.changed()
	close(n.dead)
	n.mu.Unlock()
	for _, l := range all {
		if !l.fallBack() {
			l.window.Off(keep.NoAcks)
		}
	}
	if page != nil {
		if holder := ls.k.keeper.Load(); holder != nil {
			(*holder).Drop(number)
		}
		page.Close()
	}
}

// dialLane makes a link for acknowledgements to a host's proxy.
func (k *kept) dialLane(to netip.AddrPort) (net.Conn, error) {
	p := k.p
	at := netip.AddrPortFrom(to.Addr(), p.opts.MeshPort)
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at,
		Offers: []link.Offer{{Codec: keep.Name, Data: keep.Offer{Kind: keep.Acks}.Append(nil)}}}
	conn, _, err := p.links.Dial(p.life, at.String(), h)
	return conn, err
}

// takeLane takes a link for acknowledgements, which has a slot, and uses it to its
// end.
func (p *Proxy) takeLane(a arrival) {
	p.kept.lanes.work.Go(func() {
		defer p.entry.leave()
		if err := p.useLane(a); err != nil {
			p.fail(err)
		}
		relay.Reset(a.far)
	})
}

// useLane serves a lane that another proxy opened, until it ends. The lane is
// registered under the peer's instance before the answer, so links that refer to it
// find it.
func (p *Proxy) useLane(a arrival) error {
	key := laneKey{a.hello.Instance, false}
	ls := &p.kept.lanes
	ls.mu.Lock()
	n := ls.all[key]
	if n == nil && len(ls.all) < maxLanes {
		n = ls.make(key)
		ls.work.Go(func() { n.serveLane(netip.AddrPort{}) })
	}
	ls.mu.Unlock()
	refused := reason.Errorf(reason.NotKept, "link from %s: nothing can be kept", a.source())
	if n == nil {
		p.refuse(a.far, refused)
		return refused
	}
	if err := link.Reply(a.far, &link.Answer{Instance: p.instance}); err != nil {
		return reason.Wrap(err, "link from %s", a.source())
	}
	if !n.attachConn(a.far) {
		return refused
	}
	<-n.dead
	return nil
}

// tcpOf returns the TCP connection below a link.
func tcpOf(c net.Conn) *net.TCPConn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	t, _ := c.(*net.TCPConn)
	return t
}
