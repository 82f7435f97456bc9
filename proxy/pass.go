package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Heir holds connections after the end of this proxy, for the next one; [handover.Client] is one.
// Its methods are safe for concurrent use.
type Heir interface {
	// Holds returns how many more connections it can hold, and for how long at most; 0: none, now.
	Holds() (most int, within time.Duration)
	// Stays returns an error if the heir is about to end as well. It blocks until the heir has
	// answered or ctx ends.
	Stays(ctx context.Context) error
	// Leave hands a connection over under a number, with the file of its [keep.State]. The caller
	// still has to close both of its own.
	Leave(id uint64, socket *net.TCPConn, state *os.File) error
	// Returned notes that a connection that the heir gave was taken: it need not hold it any
	// longer.
	Returned(id uint64)
}

// passes has the connections that can change links in order. When a proxy ends in order, this
// one or that at the other end, both ends bring them to stand between two messages
// ([relay.Passing]); the link ends, and the next proxy makes another. The end that dialed the
// first link dials the others too. The other end waits for it, under the session's id, which
// only the two proxies know.
//
// The course where proxy A, which dialed, is replaced by A', and B stays:
//
//	A    Drain: passes.ends has the connection stand; both ends send their last message and
//	     the command that says so, and Conn.Run returns ErrPassed at both
//	A    carry: resumeTransit finds halt closed, handOver gives socket and state to the agent
//	B    carry: resumeTransit, await: waits until Until for a link with the session's id
//	A'   adoptConn: gets socket and state from the agent; goOn, resumeTransit, dial
//	B    resume: hands the link to the transit; answer, follow: both carry on
//
// Where B is replaced instead, A dials until B' answers: with reason Starting while B' does
// not know everything that B has left. A connection that neither end can carry on is reset at
// both, and PS-lite connects again.
//
// mu is held only for the maps and counts; everything that blocks is done without it.
type passes struct {
	p    *Proxy
	heir atomic.Pointer[Heir] // nil: connections are not handed over
	halt chan struct{}        // closed when this proxy is about to end
	// agentStays is the constant, but in tests.
	agentStays time.Duration // the constant of that name; tests set less
	// replaced: the agent has asked this proxy to make way for another one.
	replaced atomic.Bool
	// deciding is done when it is known whether an heir stays. It is about to end since began.
	deciding sync.Once
	began    time.Time
	// endsWithin is how long this proxy may take to end, once it is told to. The heir's time begins
	// after that, while another proxy's begins when a connection stands; and one whose host is cut
	// off can delay this proxy's end.
	endsWithin time.Duration
	// answers is hostAnswers; tests replace it.
	answers func(ctx context.Context, host netip.Addr) bool

	mu       sync.Mutex           // guards the rest
	accepted map[keep.ID]*transit // by session: those that wait for the other proxy to dial
	asked    map[*connection]bool // connections that this proxy, about to end, has asked to stand
	alone    bool                 // it is about to end, and no heir stays
	counts   PassState
}

// transit is a connection that can change links, with what the next one needs. The goroutine that
// carries the connection owns it, except for links and waits.
type transit struct {
	keep.State
	job   net.Conn     // to the process
	line  jobs.Line    // nil: the router has no part in it
	links chan arrival // of an accepted one: the link to go on with
	waits bool         // it waits for one; guarded by passes.mu

	gathered gathered // sums of pushes, for the next link
	theirs   []byte   // of an accepted one, after a change of links: the body of the other process's READY
	// judged means that the router has let the message at the start of Left pass. The router of another
	// proxy takes that message for a repetition by a worker that was restarted, and decides anew.
	judged bool
}

// init prepares an empty passes.
func (s *passes) init(p *Proxy) {
	s.p, s.halt, s.agentStays, s.endsWithin = p, make(chan struct{}), agentStays, min(p.opts.Grace, takenUpWithin)
	s.accepted, s.asked = map[keep.ID]*transit{}, map[*connection]bool{}
	s.counts.Drained = map[string]uint64{}
	s.answers = s.hostAnswers
}

// LeaveTo sets the heir to which connections are handed when this proxy ends in order. Call it
// before connections come.
func (p *Proxy) LeaveTo(h Heir) { p.passes.heir.Store(&h) }

// passOffer returns the part of a hello or answer about a connection that can change links.
func passOffer(o keep.Pass) link.Offer {
	return link.Offer{Codec: keep.PassName, Data: o.Append(nil)}
}

// passOffered returns that part of the other proxy's offers; false where there is none.
func passOffered(all []link.Offer) (o keep.Pass, ok bool) {
	for _, a := range all {
		if a.Codec == keep.PassName {
			o, err := keep.ParsePass(a.Data)
			return o, err == nil
		}
	}
	return o, false
}

// beginTransit makes a connection, which has its link, one that can change links. Without a codec
// it cannot: nobody knows where a message begins.
func (s *passes) beginTransit(c *connection, st keep.State) {
	if c.pipe.Sender == nil || c.pipe.Receiver == nil {
		return // it is unknown where a message begins
	}
	st.Client, st.Destination, st.Job, st.Origin = c.client, c.destination, c.job, c.origin
	t := &transit{State: st, job: c.pipe.Job, line: c.line(), links: make(chan arrival, 1)}
	if s.enter(t) {
		s.attach(c, t, &relay.Passing{})
	}
}

// scope returns the scope of the process.
func (t *transit) scope() jobs.Scope { return jobs.Scope{Cgroup: t.Cgroup, Netns: t.Netns} }

// attach ties a connection to its transit.
func (s *passes) attach(c *connection, t *transit, p *relay.Passing) {
	c.transit, c.pipe.Passing = t, p
}

// enter registers an accepted connection, so that links that resume it find it. It returns false
// where another has its session.
func (s *passes) enter(t *transit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Dialed {
		return true
	}
	if s.accepted[t.Session] != nil {
		return false
	}
	s.accepted[t.Session] = t
	return true
}

// removeTransit forgets a connection that has ended or belongs to another proxy now. A link that
// came for it is closed.
func (s *passes) removeTransit(t *transit) {
	s.mu.Lock()
	if s.accepted[t.Session] == t {
		delete(s.accepted, t.Session)
	}
	s.mu.Unlock()
	t.gathered.close()
	select {
	case a := <-t.links:
		a.far.Close()
	default:
	}
}

// carry carries a connection to its end, or until it is another proxy's, over one link after
// another.
func (s *passes) carry(c *connection) error {
	t := c.transit
	defer s.removeTransit(t)
	for {
		// ErrPassed means that both ends stand. Each of them then enters resumeTransit: that
		// of the proxy which stays dials or waits, that of the one which ends hands over.
		carried := c
		err := s.p.carry(c)
		if !errors.Is(err, relay.ErrPassed) {
			s.unask(carried)
			return err
		}
		p := c.pipe.Passing
		t.Left, t.Ready, t.judged = p.Left, p.Ready, p.Judged
		// The host's monotonic clock is the same for all its processes, so the next proxy can
		// read the time.
		t.Until = keep.Monotonic() + min(p.HeldFor(), takenUpWithin)
		c, err = s.resumeTransit(t)
		s.unask(carried)
		if c == nil {
			return err
		}
	}
}

// unask forgets a connection that has ended, or that the heir holds.
func (s *passes) unask(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asked, c)
}

// resumeTransit has a connection that stands go on over another link. Where this proxy is about to
// end it hands the connection to the next one instead, and returns neither a connection nor an
// error. After an error the process's connection is reset.
func (s *passes) resumeTransit(t *transit) (*connection, error) {
	// The dialer has to wait as long as the connection may be held, and the other end no
	// longer than it is held there.
	goOn, within, host := s.await, t.Until-keep.Monotonic(), t.Far
	if t.Dialed {
		goOn, within, host = s.dial, max(within, takenUpWithin), t.Destination.Addr()
	}
	ctx, cancel := s.waitFor(host, within)
	defer cancel()
	c, err := goOn(ctx, t)
	if errors.Is(err, errLeaves) {
		err = s.handOver(t)
	}
	if err != nil {
		// Without mu: closing a line takes the locks of all jobs, and the goroutine that answers the
		// agent's pings takes mu.
		t.reset()
		err = reason.Wrap(err, "%s to %s", t.Client, t.Destination)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c != nil:
		s.counts.Taken++
	case err == nil:
		s.counts.Left++
	default:
		s.counts.Lost++
	}
	return c, err
}

// errLeaves ends waits for links and connects, since this proxy is about to end.
var errLeaves = errors.New("this proxy is shutting down")

// handOver hands a connection that stands to the heir, for the proxy after this one.
func (s *passes) handOver(t *transit) error {
	heir := s.heir.Load()
	if heir == nil {
		return reason.Errorf(reason.NotKept, "cannot hand over the connection: no agent")
	}
	// The router may have messages queued for the process.
	if t.line != nil {
		if err := t.line.Leave(t.job); err != nil {
			return reason.Errorf(reason.ResetByJob, "handing the connection over: %w", err)
		}
	}
	// What the next proxy needs travels in a file in memory beside the socket, over the
	// agent's Unix socket: nothing is on disk.
	file, err := keep.NewStateFile(&t.State)
	if err != nil {
		return reason.Errorf(reason.NotKept, "%w", err)
	}
	defer file.Close()
	if err := (*heir).Leave(s.p.kept.numbers.Add(1), relay.TCP(t.job), file); err != nil {
		return reason.Errorf(reason.NotKept, "handing the connection over: %w", err)
	}
	t.job.Close()
	if t.line != nil {
		t.line.Close()
	}
	return nil
}

// reset resets the process's connection.
func (t *transit) reset() {
	sock.Reset(t.job)
	if t.line != nil {
		t.line.Close()
	}
}

// agentStays is how long a proxy that is about to end waits to see whether the agent ends too, as
// it does where a pod ends that has both: then nobody would hold what it leaves. After that it asks
// the agent, and drains its connections where there is no answer within agentAnswers. The job's
// messages are carried meanwhile, and nobody notices ([Proxy.PrepareEnd]).
const (
	agentStays   = 500 * time.Millisecond
	agentAnswers = 3 * time.Second
)

// PrepareEnd waits until it is known whether the agent holds this proxy's connections, and until the
// hosts at the other ends of links answer. It blocks for agentStays, and longer where the agent or a
// host does not answer: for agentAnswers and hostsBack at most. Everything goes on meanwhile: call it before the context of
// [Proxy.Run] ends. Otherwise [Proxy.Drain] waits, when nothing is accepted any more, and a proxy of
// another host that has just started cannot ask this one where keys are.
func (p *Proxy) PrepareEnd() { p.passes.decide() }

// Replaced notes that the agent has asked this proxy to make way for another one. So the agent is
// not about to end, and need not be waited for.
func (p *Proxy) Replaced() { p.passes.replaced.Store(true) }

// decide finds out, once, whether an heir stays when this proxy ends.
func (s *passes) decide() {
	s.deciding.Do(func() {
		s.began = time.Now()
		stays := s.heirStays()
		waited := s.awaitHosts()
		// Without an agent connections are drained, which costs the job much more than asking
		// once more.
		if !stays && waited > s.agentStays {
			stays = s.heirStays() // another agent may have come meanwhile
		}
		s.mu.Lock()
		s.alone = !stays
		s.mu.Unlock()
	})
}

// stop begins the end of this proxy: connections that wait for a link are handed over.
func (s *passes) stop() {
	s.decide()
	close(s.halt)
}

// heirStays reports whether there is an heir that is not about to end too. It blocks for agentStays
// at least, unless there is none or this proxy is replaced.
func (s *passes) heirStays() bool {
	within := s.agentStays
	if s.replaced.Load() {
		within = 0
	}
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		heir := s.heir.Load()
		if heir == nil {
			return false
		}
		// No agent, or one that holds nothing: it has gone while this proxy waited.
		if _, within := (*heir).Holds(); within == 0 {
			return false
		}
		select {
		case <-late.C:
			ctx, cancel := context.WithTimeout(s.p.life, agentAnswers)
			defer cancel()
			err := (*heir).Stays(ctx)
			if err != nil {
				s.p.log.Info("draining connections instead of handing them over", "error", err)
			}
			return err == nil
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Why a connection is drained, or reset, instead of handed over when the proxy ends in order.
const (
	drainNoHeir   = "no_agent"    // nobody holds it, or not for long enough
	drainNoRoom   = "no_room"     // the agent holds as many as it can
	drainOldPeer  = "other_proxy" // there is no proxy at the other end, or one that cannot go on with it
	drainUnframed = "no_messages" // a stream without a codec, or not of messages
	drainNotSetUp = "not_set_up"  // nothing was carried yet, as while it waited for the other proxy
)

// ends has a connection stand between two messages, to be handed over, where it can be; otherwise
// it returns why not. It may be called repeatedly.
func (s *passes) ends(c *connection) (passes bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heir := s.heir.Load()
	switch {
	case heir == nil, s.alone:
		return false, drainNoHeir
	case c.codec == "":
		return false, drainUnframed
	case c.transit == nil:
		return false, drainOldPeer
	case !c.pipe.Passes():
		return false, drainUnframed
	// A connection that was asked to stand does so when it can; that may take until its
	// current message has ended.
	case s.asked[c]:
		return true, ""
	}
	most, within := (*heir).Holds()
	if within == 0 {
		return false, drainNoHeir
	}
	if len(s.asked) >= most { // those that were handed over are not counted in most any more
		return false, drainNoRoom
	}
	s.asked[c] = true
	// The other end may keep its connection for as long: it does not know when this proxy
	// will have ended.
	c.pipe.Pass(within + s.endsWithin)
	return true, ""
}

// drains counts a connection that is drained.
func (s *passes) drains(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Drained[why]++
}

// adoptConn goes on with a connection that the previous proxy has handed over, as given by the heir
// under a number. Both files become the proxy's.
func (s *passes) adoptConn(number uint64, socket, file *os.File) {
	st, err := keep.ReadState(file)
	// The state is read: the duplicate that the agent holds is released below.
	file.Close()
	conn, failed := net.FileConn(socket)
	socket.Close()
	// Whatever comes of the connection here, the agent must not give it to yet another proxy.
	if heir := s.heir.Load(); heir != nil {
		(*heir).Returned(number)
	}
	tcp, ok := conn.(*net.TCPConn)
	if err = errors.Join(err, failed); err != nil || !ok {
		if failed == nil {
			sock.Reset(conn)
		}
		s.p.fail(reason.Errorf(reason.NotKept, "a connection that was handed over is lost: %w", errors.Join(err, failed)))
		return
	}
	t := &transit{State: *st, job: tcp, links: make(chan arrival, 1), waits: true}
	known := s.enter(t) // before it is asked for
	s.p.work.Go(func() {
		if err := s.goOn(t, known); err != nil {
			s.p.fail(err)
		}
	})
}

// goOn carries on a connection that the previous proxy has handed over. One that cannot be carried
// on is reset, so that PS-lite connects again; it would wait forever on one that is merely silent.
func (s *passes) goOn(t *transit, known bool) error {
	defer s.removeTransit(t)
	if !known {
		t.reset()
		return reason.Errorf(reason.NotKept, "%s to %s: handed over twice", t.Client, t.Destination)
	}
	if err := s.p.enter(t.job.RemoteAddr()); err != nil {
		t.reset()
		return err
	}
	defer s.p.entry.leave()
	// The agent must recognize the socket as the proxy's own before its first byte is
	// carried.
	s.p.conns.know(t.job)
	s.p.restoreOnce() // what waits of the process's pushes
	if s.p.opts.Jobs != nil && t.Dialed {
		line, err := s.p.opts.Jobs.ResumeOutbound(t.Destination, t.scope(), t.Origin, t.Ready)
		if t.line = line; err != nil {
			t.reset()
			return reason.Wrap(err, "%s to %s", t.Client, t.Destination)
		}
	}
	if now := keep.Monotonic(); now < t.Until {
		t.Until = now + takenUpWithin // the other proxy waits for as long, if it is cut off
	}
	c, err := s.resumeTransit(t)
	if c == nil {
		return err
	}
	return s.carry(c)
}
