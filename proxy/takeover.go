package proxy

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/keep"
)

// TakeKept goes on with a connection of the previous proxy, which the keeper gave under a
// number with its page or state. Both files become the proxy's. Call it after Keep and
// LeaveTo, for all connections, and then [Proxy.Settled]. It does not block.
func (p *Proxy) TakeKept(number uint64, socket, page *os.File) {
	// The previous proxy ended in order, and left a transit. Otherwise it was killed, and
	// left a session or a lane.
	if keep.IsState(page) {
		p.passes.adoptConn(number, socket, page)
		return
	}
	kept, err := keep.OpenPage(page)
	// Without --outlive this proxy has no lane to the other one, and could not resume the
	// session.
	if err == nil && p.kept.keeper.Load() == nil {
		err = errors.Join(errors.New("this proxy has no --outlive"), kept.Close())
	}
	if err != nil {
		p.log.Warn("resetting a connection that outlived its proxy", "error", err)
		resetFile(socket)
		p.dropKept(number)
		return
	}
	// It duplicates the descriptor; the file is closed at once.
	conn, err := net.FileConn(socket)
	err = errors.Join(err, socket.Close())
	tcp, ok := conn.(*net.TCPConn)
	if err == nil && !ok {
		err = errors.Join(errors.New("no TCP connection"), conn.Close())
	}
	if err != nil {
		p.log.Warn("lost a connection that outlived its proxy", "error", errors.Join(err, kept.Close()))
		p.dropKept(number)
		return
	}
	if holder := p.kept.keeper.Load(); holder != nil {
		(*holder).Took(number, tcp, kept.File())
	}
	// It carries nothing any more, and is held only for what its being open tells the other
	// proxy.
	if kept.Meta().Lane {
		p.work.Go(func() { p.holdLane(number, tcp, kept) })
		return
	}
	s := p.kept.enter(kept, tcp, number) // before it is asked for
	p.work.Go(func() {
		if err := p.takeOver(s, number, tcp, kept); err != nil {
			p.fail(err)
		}
	})
}

// dropKept releases what the keeper or the heir holds under a number.
func (p *Proxy) dropKept(number uint64) {
	if holder := p.kept.keeper.Load(); holder != nil {
		(*holder).Drop(number)
	} else if heir := p.passes.heir.Load(); heir != nil {
		(*heir).Returned(number)
	}
}

// resetFile resets a connection of which there is only the descriptor. Merely closing it
// would leave the keeper's duplicate open, and the process would wait.
func resetFile(socket *os.File) {
	if conn, err := net.FileConn(socket); err == nil {
		sock.Reset(conn)
	}
	socket.Close()
}

// takeOver carries on a session of the previous proxy, to its end.
func (p *Proxy) takeOver(s *session, number uint64, job *net.TCPConn, page *keep.Page) error {
	m := page.Meta()
	if s == nil {
		sock.Reset(job)
		p.dropKept(number)
		return errors.Join(reason.Errorf(reason.NotKept, "%s to %s: this proxy does not take it over", m.Client, m.Destination), page.Close())
	}
	if err := p.enter(job.RemoteAddr()); err != nil {
		sock.Reset(job)
		s.endSession()
		return err
	}
	defer p.entry.leave()
	p.conns.know(job)
	// No lane of the previous proxy is known here. holdLane keeps them open meanwhile, so the
	// other proxy waits.
	c, err := s.await(nil)
	s.k.countTaken(err == nil)
	if err != nil {
		sock.Reset(job)
		s.endSession()
		return reason.Wrap(err, "%s to %s", m.Client, m.Destination)
	}
	return p.carryKept(s, c)
}

// holdLane keeps a lane of the previous proxy open for as long as its connections may still
// be resumed: the other proxy waits for them until the lane ends.
func (p *Proxy) holdLane(number uint64, lane *net.TCPConn, page *keep.Page) {
	began, late := time.Now(), time.NewTimer(takenUpWithin)
	defer late.Stop()
	look := time.NewTicker(resumeEvery)
	defer look.Stop()
	for waits := true; waits; {
		select {
		case <-p.life.Done():
			waits = false
		case <-late.C:
			waits = false
		case <-look.C:
			// At least for laneStays: the sessions that it stands for may be named after it.
			waits = time.Since(began) < laneStays || !p.kept.settled.Load() || p.kept.waits()
		}
	}
	p.dropKept(number)
	sock.Reset(lane)
	page.Close()
}

// waits reports whether any session waits for its next link.
func (k *kept) waits() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for s := range k.all {
		s.mu.Lock()
		now := s.now
		s.mu.Unlock()
		if now == nil {
			return true
		}
	}
	return false
}

// Settled notes that all connections of previous proxies have been named.
func (p *Proxy) Settled() { p.kept.settled.Store(true) }
