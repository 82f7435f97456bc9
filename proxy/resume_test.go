package proxy

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// What is announced of a stream's end decides whether it is one, wherever the link began.
func TestEndOfAStreamThatIsAnnounced(t *testing.T) {
	for _, c := range []struct {
		name       string
		began, end uint64
		came       int
		broken     bool
	}{
		{"all has come", 50, 100, 50, false},
		{"bytes are missing", 50, 100, 49, true},
		{"what the process had got came again in part", 50, 50, -10, true},
		{"an earlier version's proxy has counted less", 50, 70, 50, false},
	} {
		l := &keptLink{began: c.began, lane: &lane{orderly: true, dead: make(chan struct{})}}
		l.farEnd = &c.end
		if err := l.farEnded(c.came); errors.Is(err, relay.ErrBroken) != c.broken {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// counted is a codec that counts those of its senders and receivers that were not closed.
type counted struct {
	relay.Codec
	open atomic.Int64
}

type countedSender struct {
	relay.Sender
	codec *counted
}

type countedReceiver struct {
	relay.Receiver
	codec *counted
}

func (c *counted) Open(l relay.Link, offered []byte) (relay.Sender, relay.Receiver, error) {
	s, r, err := c.Codec.Open(l, offered)
	if err != nil {
		return nil, nil, err
	}
	c.open.Add(2)
	return &countedSender{s, c}, &countedReceiver{r, c}, nil
}

func (s *countedSender) Close()   { s.codec.open.Add(-1); s.Sender.Close() }
func (r *countedReceiver) Close() { r.codec.open.Add(-1); r.Receiver.Close() }

// gone returns a link whose hello has come, and whose peer has reset it since.
func gone(t *testing.T, p *Proxy, to netip.AddrPort, more ...link.Offer) arrival {
	t.Helper()
	l := listen(t, serverHost)
	peer := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	conn := require.Value(l.Accept())(t)
	t.Cleanup(func() { conn.Close() })
	sock.Reset(peer)
	require.Eventually(t, "the link is reset", func() bool { return !relay.Established(conn) })
	hello := &link.Hello{Instance: relay.Instance{1}, ID: 7, Client: addrPort(peer.LocalAddr()), Destination: to, Offers: append(p.codecOffers(), more...)}
	return arrival{conn: conn.(*net.TCPConn), far: conn, hello: hello}
}

// A codec that was begun for a link whose peer is gone before the answer is ended: it would
// count as that of a link forever.
func TestCodecOfALinkThatIsGone(t *testing.T) {
	codec := &counted{Codec: compact.New(compact.DefaultLimits)}
	p, _ := start(t, Options{Codecs: []relay.Codec{codec}}, nil)
	p.Keep(&holding{})
	to := newServer(t)
	check := func(t *testing.T, err error) {
		t.Helper()
		if err == nil {
			t.Error("the link was answered")
		}
		if n := codec.open.Load(); n != 0 {
			t.Errorf("%d ends of the codec are open", n)
		}
	}
	t.Run("new", func(t *testing.T) { check(t, p.inbound(gone(t, p, to.addr()))) })
	t.Run("resumed", func(t *testing.T) {
		if err := keep.Supported(); err != nil {
			require.Missing(t, "%v", err)
		}
		job := require.Value(net.Dial("tcp", to.addr().String()))(t)
		t.Cleanup(func() { job.Close() })
		mine := keep.Offer{Kind: keep.Resume, Session: keep.ID{1}, Message: true}
		page := require.Value(keep.NewPage(keep.Meta{Session: mine.Session, Destination: to.addr()}))(t)
		s := p.kept.enter(page, job.(*net.TCPConn), 1)
		defer s.endSession()
		_, err := s.answer(gone(t, p, to.addr(), link.Offer{Codec: keep.Name, Data: mine.Append(nil)}), mine)
		check(t, err)
	})
}

// A lane that was retired while it was dialed ends at both ends.
func TestLaneThatIsRetiredWhileItIsDialed(t *testing.T) {
	h := keepingHosts(t, func(_, _ *Options) {})
	ls := &h.worker.kept.lanes
	ls.mu.Lock()
	n := ls.make(laneKey{relay.Instance{1}, true})
	ls.mu.Unlock()
	n.over = true
	served := make(chan struct{})
	go func() {
		defer close(served)
		n.serveLane(h.job.addr())
	}()
	<-served
	require.Eventually(t, "the other proxy's end has ended", func() bool { return h.server.kept.lanes.count() == 0 })
}

// A lane whose last link has just broken is not retired by what an earlier link set off: it proves
// that the connection is held.
func TestLaneOfALinkThatHasJustBrokenStays(t *testing.T) {
	p, _ := start(t, Options{}, nil)
	ls := &p.kept.lanes
	ls.mu.Lock()
	n := ls.make(laneKey{relay.Instance{1}, true})
	ls.mu.Unlock()
	l := &keptLink{id: 1}
	n.links[l.id] = l
	n.removeLink(l)
	n.retire()
	if n.isOver() {
		t.Error("the lane has ended")
	}
	n.mu.Lock()
	n.idle = n.idle.Add(-laneIdle)
	n.mu.Unlock()
	n.retire()
	if !n.isOver() {
		t.Error("the lane stays although nothing has used it for a while")
	}
}

// A link for a connection that has stopped waiting is not put where nobody looks at it.
func TestLinkForAConnectionThatIsOver(t *testing.T) {
	p, _ := start(t, Options{}, nil)
	s := &p.passes
	job, process := net.Pipe()
	defer process.Close()
	defer job.Close()
	session := require.Value(keep.NewID())(t)
	tr := &transit{State: keep.State{Session: session}, job: job, links: make(chan arrival, 1), waits: true}
	if !s.enter(tr) {
		t.Fatal("it is known already")
	}
	if !s.give(tr, arrival{}) {
		t.Error("a connection that waits does not take a link")
	}
	if s.give(tr, arrival{}) {
		t.Error("a connection takes a second link before it has looked at the first")
	}
	<-tr.links
	s.setWaits(tr, false)
	if s.give(tr, arrival{}) {
		t.Error("a connection that has a link takes another")
	}
	s.setWaits(tr, true)
	s.removeTransit(tr)
	if s.give(tr, arrival{}) {
		t.Error("a connection that is over takes a link")
	}
}
