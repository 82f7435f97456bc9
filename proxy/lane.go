package proxy

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// An acknowledgement is sent once it covers that many bytes, or has waited that
// long.
const (
	// An acknowledgement is sent once it covers ackBytes, or ackWithin later.
	ackBytes  = 256 << 10
	ackWithin = 10 * time.Millisecond
	ackPause  = time.Millisecond // from one writing to the next
	maxLanes  = 4096
	// laneYoung is the age up to which a lane may not be held by the keepers yet.
	laneYoung = time.Second
	// laneStays is how long the lane of a killed proxy stays open at least.
	laneStays = time.Second
	// laneIdle is how long a lane without links is kept.
	laneIdle = 2 * time.Second
	// laneWithin is how long the dialer has to make a lane: on a busy machine its proxy may
	// get no processor for seconds.
	laneWithin = takenUpWithin
	// endWithin is how long the end of a link waits for the announcement that it is in order.
	endWithin = 200 * time.Millisecond
	// closeWithin is how long one waits to hear that the end of a stream was passed on.
	closeWithin = time.Second
)

// laneKey identifies a lane: it serves all links that this proxy has dialed to another one,
// or has accepted from it.
type laneKey struct {
	peer   relay.Instance
	dialed bool
}

// lanes has the lanes of a proxy, at most maxLanes.
type lanes struct {
	k    *kept
	work sync.WaitGroup // goroutines that serve them

	mu  sync.Mutex // guards all
	all map[laneKey]*lane
}

func (ls *lanes) init(k *kept) { ls.k, ls.all = k, map[laneKey]*lane{} }

// count returns the number of lanes.
func (ls *lanes) count() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.all)
}

// lane is a link over which two proxies acknowledge what was sent over the links that one of
// them dialed to the other. One connection for all of them costs less than a second stream in
// each, and tells something that no link can: the keepers of both proxies hold the lane too,
// so it stays open when a proxy is killed, for as long as its connections are held for the
// next one. Its end proves that nothing is kept any more, and nobody waits in vain.
//
// What travels over it, all as [keep.Ack]:
//
//	AckWrote    the process here has got so many bytes: they may leave the other end's queue
//	AckEnded    the process here has ended its stream at this offset
//	AckClosed   the process here has received the end of the other's stream
//	AckStops    this proxy is about to end in order: nothing need be kept
//
// A lane is served by one goroutine (serveLane), which writes, and one that reads. It begins
// without a connection, when the first link needs it; the dialer's end then dials, and the
// other end waits for that. dead is closed when it has ended; over is set a little before.
// ls.mu is acquired before mu.
type lane struct {
	ls   *lanes
	key  laneKey
	made time.Time     // time of its creation
	wake chan struct{} // something is to be written, or the connection is there
	dead chan struct{} // closed when the lane has ended

	mu      sync.Mutex           // guards the rest
	conn    net.Conn             // nil: it is not there yet
	number  uint64               // the keeper's
	page    *keep.Page           // only marks the socket as a lane for the next proxy
	links   map[uint64]*keptLink // by the dialer's id
	idle    time.Time            // since when there are no links, once there were
	dirty   map[*keptLink]bool   // links with something to acknowledge
	bytes   uint64               // not acknowledged yet, of all links
	say     []keep.Ack           // other acknowledgements, in order
	orderly bool                 // one of the proxies has announced that it is about to end
	over    bool                 // it is ending
	heard   chan struct{}        // see news
}

// addLink adds a connection's link to its lane, and makes the lane if there is none.
func (ls *lanes) addLink(l *keptLink, c *connection) (*lane, error) {
	key := laneKey{c.peer, l.session.page.Meta().Dialed}
	ls.mu.Lock()
	n := ls.all[key]
	// A lane that is ending still has its own links; a new one must not join it.
	if n == nil || n.isOver() {
		if len(ls.all) >= maxLanes {
			ls.mu.Unlock()
			return nil, reason.Errorf(reason.TooMany, "ack links: %d", maxLanes)
		}
		n = ls.make(key)
		ls.work.Go(func() { n.serveLane(c.destination) })
	}
	ls.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isDead() {
		return nil, reason.Errorf(reason.ResetByFarSide, "the other proxy has disconnected")
	}
	n.links[l.id] = l // if the lane is ending, endLinks takes care of it
	l.reported = l.written.Load()
	return n, nil
}

// make makes a lane without a connection; the caller holds ls.mu.
func (ls *lanes) make(key laneKey) *lane {
	n := &lane{ls: ls, key: key, made: time.Now(), wake: make(chan struct{}, 1), dead: make(chan struct{}), links: map[uint64]*keptLink{}, dirty: map[*keptLink]bool{}}
	ls.all[key] = n
	return n
}

// removeLink removes a link from its lane, and from those that it has fallen back to.
func (ls *lanes) removeLink(l *keptLink) {
	if l == nil || l.lane == nil {
		return
	}
	l.lane.removeLink(l)
	for _, n := range l.before {
		n.removeLink(l)
	}
}

// removeLink removes a link. The dialer's end retires a lane that has had none for a while;
// the other end follows.
func (n *lane) removeLink(l *keptLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[l.id] == l {
		delete(n.links, l.id)
	}
	delete(n.dirty, l)
	// Only the dialer's end retires a lane. Were both to do so, one could end a lane that the
	// other is about to use.
	if len(n.links) == 0 && n.key.dialed && !n.over {
		n.idle = time.Now()
		time.AfterFunc(laneIdle, n.retire)
	}
}

// isOver reports whether the lane is ending.
func (n *lane) isOver() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.over
}

// isDead reports whether the lane has ended.
func (n *lane) isDead() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
}

// fallBack adds a link whose lane has ended to the lane of an earlier link that is open, and
// returns false where none is. The link stays kept for as long as that one is open: a proxy
// that is killed as soon as it has begun may not have had its own lane held yet, while the
// earlier proxy's is.
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

// retire ends a lane that no link has used for a while. A session that waits for its next
// link may be about to use it, so it stays then.
func (n *lane) retire() {
	// A session without a link is about to get one, perhaps over this lane's proxy.
	if n.ls.k.waits() {
		time.AfterFunc(laneIdle, n.retire)
		return
	}
	n.ls.mu.Lock()
	defer n.ls.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	// The last link may have been removed just now, since it was looked for sessions that wait: that
	// link's session is about to resume, and the lane proves that its other end is held.
	if len(n.links) > 0 || n.over || n.ls.all[n.key] != n || time.Since(n.idle) < laneIdle {
		return
	}
	delete(n.ls.all, n.key)
	n.over = true
	n.wakeWriter()
}

// stop announces on all lanes that this proxy is about to end.
func (ls *lanes) stop() {
	for _, n := range ls.each() {
		n.mu.Lock()
		n.orderly = true
		n.mu.Unlock()
		n.tell(keep.Ack{Kind: keep.AckStops})
	}
}

// each returns the lanes.
func (ls *lanes) each() (all []*lane) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, n := range ls.all {
		all = append(all, n)
	}
	return all
}

// close waits for all lanes to end. The proxy's life must have ended.
func (ls *lanes) close() { ls.work.Wait() }

// announceEnd tells the other proxy at which offset the process's stream ends, so that it can
// tell the link's end from a broken link.
func (l *keptLink) announceEnd() {
	l.lane.tell(keep.Ack{Link: l.id, Kind: keep.AckEnded, Offset: l.window.Peeked()})
}

// serveLane makes the lane's connection, at the dialer's end, or waits for the other proxy to
// make it, and uses it until it ends.
func (n *lane) serveLane(host netip.AddrPort) {
	defer n.endLinks()
	// The end that dialed the links dials the lane as well, since it can reach the other.
	if n.key.dialed {
		conn, err := n.ls.k.dialLane(host, n.key.peer)
		if err != nil {
			n.ls.k.p.log.Debug("no link for acks", "to", host, "error", err)
			return
		}
		if !n.attachConn(conn) { // it was retired meanwhile, or nobody would hold it
			sock.Reset(conn)
			return
		}
	}
	late := time.NewTimer(laneWithin)
	defer late.Stop()
	for {
		n.mu.Lock()
		// attachConn may set it at any time, and wakes this loop.
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

// attachConn gives the lane its connection, which the keeper holds too. It returns false
// where the lane cannot use it.
func (n *lane) attachConn(conn net.Conn) bool {
	k := n.ls.k
	holder := k.keeper.Load()
	tcp := relay.TCP(conn)
	if holder == nil || tcp == nil {
		return false
	}
	// The keeper holds sockets with pages only; this one tells the next proxy that the socket
	// is a lane.
	page, err := keep.NewPage(keep.Meta{Lane: true})
	if err != nil {
		k.p.log.Warn("connections would not survive a kill of this proxy", "error", err)
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// A lane has one connection in its life.
	if n.over || n.conn != nil {
		page.Close()
		return false
	}
	n.conn, n.page, n.number = conn, page, k.numbers.Add(1)
	(*holder).Keep(n.number, tcp, page.File())
	n.wakeWriter()
	return true
}

// use writes and reads acknowledgements until the lane ends.
func (n *lane) use(conn net.Conn) {
	stop := context.AfterFunc(n.ls.k.p.life, func() { sock.Reset(conn) })
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
	// It returns when the lane is over or a write fails. The reset then ends the reader too.
	n.writeAcks(conn)
	sock.Reset(conn)
	reading.Wait()
}

// current returns the lane's links; the caller holds n.mu.
func (n *lane) current() (all []*keptLink) {
	for _, l := range n.links {
		all = append(all, l)
	}
	return all
}

// endLinks ends the lane: links that cannot fall back to an earlier one are not kept any
// more.
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

// dialLane dials the proxy of a host for a lane of its links.
func (k *kept) dialLane(to netip.AddrPort, peer relay.Instance) (net.Conn, error) {
	p := k.p
	at := netip.AddrPortFrom(to.Addr(), p.opts.MeshPort)
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at,
		Offers: []link.Offer{{Codec: keep.Name, Data: keep.Offer{Kind: keep.Acks}.Append(nil)}}}
	return p.dialPeer(p.life, h, peer)
}

// takeLane serves a lane that another proxy dialed, which has a slot, to its end.
func (p *Proxy) takeLane(a arrival) {
	p.kept.lanes.work.Go(func() {
		defer p.entry.leave()
		if err := p.useLane(a); err != nil {
			p.fail(err)
		}
		sock.Reset(a.far)
	})
}

// useLane answers a lane that another proxy dialed, and blocks until it ends. The lane is
// registered under the peer's instance before the answer, so that links which refer to it
// find it.
func (p *Proxy) useLane(a arrival) error {
	key := laneKey{a.hello.Proven, false}
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
