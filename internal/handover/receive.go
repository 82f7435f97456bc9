package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Client is the proxy's side. Its methods are safe for concurrent use; those that set a
// function are for the time before Run.
//
// Run has one session after another, each with one agent. conn and all that is said of "this
// agent" are of the current session, and are reset by attach. Listeners, in serving, outlast
// sessions.
type Client struct {
	socket string // its path, for messages
	dial   func(context.Context) (*net.UnixConn, error)
	serve  func(context.Context, *Listener) error
	// linger is how long a listener is still served after another has replaced it, for
	// connects that are in its queue.
	linger time.Duration
	alive  func() error                                      // nil: pings are always answered
	ended  func(ctx context.Context, job string, node int32) // nil: last pushes are ignored
	called func(Title)                                       // nil: names and wishes are ignored
	yield  func()                                            // nil: this proxy does not yield
	spares func() bool                                       // nil: it cannot be spared
	// carried returns what the proxy has carried; nil: that is not reported.
	carried func() (job, far uint64)
	// crowded returns the cgroup that has its share, 0 if none has; nil: there are no shares.
	crowded func() uint64
	// partKeys returns which keys are parts of others, by job; nil: that is not told.
	partKeys func() map[string][]PartRange

	mu           sync.Mutex // guards the rest
	conn         *Conn      // nil while there is no agent
	sequence     uint64
	waiting      map[uint64]chan Message // questions without an answer, by sequence
	serving      map[place]served        // the latest listener of each place
	named        map[uint64]bool         // listeners that this agent has named
	full         bool                    // the proxy takes no more connections
	told         bool                    // full, as this agent knows it
	pinged       bool                    // this agent sends pings, and knows Full
	sessions     uint64                  // agents so far that have named all their listeners
	complete     bool                    // this agent has
	owners       bool                    // this agent answers Owner
	answersStays bool                    // this agent answers Stays
	judges       bool                    // this agent knows Spares and Unneeded
	toldSpares   bool                    // what it was last told about Spares
	toldParts    map[toldPart]bool       // part keys that this agent knows; nil: it does not know what they are
	changed      chan struct{}           // full or the kept connections may have changed
	keeping      keeping
	stay         <-chan struct{} // a session lasts until it is closed, beyond Run's context; nil: it does not
}

// place is what there is one listener for.
type place struct {
	cgroup, netns uint64
	six, mesh     bool
}

// served is a listener that is being served.
type served struct {
	id   uint64
	stop context.CancelFunc
}

// retry is the pause between attempts to reach the agent.
const retry = 500 * time.Millisecond

const linger = 2 * time.Second

// NewClient returns a client of the agent at the socket (empty: [DefaultSocket]). serve is
// called, in a goroutine of its own, for each listener that is handed over. It owns the
// listener, and must close it and return when its context ends: the listener was withdrawn or
// replaced, or Run is ending.
func NewClient(socket string, serve func(context.Context, *Listener) error) *Client {
	if socket == "" {
		socket = DefaultSocket
	}
	return newClient(socket, func(ctx context.Context) (*net.UnixConn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}, serve)
}

// NewLocalClient is [NewClient] for an agent in the same process: dial returns one end of a
// [Pair] whose other end the agent serves.
func NewLocalClient(dial func(context.Context) (*net.UnixConn, error), serve func(context.Context, *Listener) error) *Client {
	return newClient("this process", dial, serve)
}

func newClient(name string, dial func(context.Context) (*net.UnixConn, error), serve func(context.Context, *Listener) error) *Client {
	return &Client{socket: name, dial: dial, serve: serve, linger: linger, waiting: map[uint64]chan Message{}, serving: map[place]served{},
		changed: make(chan struct{}, 1)}
}

// Run takes listeners until ctx ends, serve fails, or the agent refuses this proxy. Without
// an agent it keeps serving the listeners that it has, and looks for one. It returns when all
// calls of serve have returned.
func (c *Client) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	talking, hangUp := c.talking(ctx)
	defer hangUp()
	g.Go(func() error { c.tellFull(talking); return nil })
	g.Go(func() error {
		var told string
		for {
			err := c.session(ctx, talking, g)
			switch {
			case talking.Err() != nil:
				return nil
			// Another attempt would be refused as well, for instance because of the version.
			case errors.Is(err, errRefused):
				return err
			case err.Error() != told: // not every half second
				told = err.Error()
				slog.Warn("no agent; serving the existing listeners and reconnecting", "socket", c.socket, "error", err)
			}
			select {
			case <-talking.Done():
				return nil
			case <-time.After(retry):
			}
		}
	})
	return g.Wait()
}

// errRefused ends Run: the agent does not want this proxy.
var errRefused = errors.New("the agent refuses this proxy")

// session talks to one agent until it or talking ends. Listeners are served until ctx ends,
// which may be earlier.
func (c *Client) session(ctx, talking context.Context, g *errgroup.Group) error {
	raw, err := c.dial(talking)
	if err != nil {
		return fmt.Errorf("connecting to the agent: %w", err)
	}
	conn := NewConn(raw)
	defer conn.Close()
	stop := context.AfterFunc(talking, func() { conn.Close() })
	defer stop()
	// Before anything is taken from the socket.
	if err := trust(conn); err != nil {
		return err
	}
	hello := Message{Kind: Hello, Version: Version, Mesh: true, Yields: c.yield != nil}
	if c.keeping.take != nil {
		hello.Keeps = 1
	}
	hello.On = c.spares != nil && c.spares()
	if err := conn.Send(hello, nil); err != nil {
		return err
	}
	m, _, err := conn.Receive()
	switch {
	case err != nil:
		return err
	case m.Kind == Refused:
		return fmt.Errorf("%w: %s", errRefused, m.Error)
	// A different version may mean anything by the same words.
	case m.Kind != Hello || m.Version != Version:
		return fmt.Errorf("%w: it speaks version %d of the protocol, this is %d", errRefused, m.Version, Version)
	}
	// A proxy that takes nothing up must not have anything held either: nobody would release
	// it.
	if c.keeping.take == nil {
		m.Keeps = 0
	}
	c.attach(conn, m)
	c.mu.Lock()
	c.judges, c.toldSpares = m.On, hello.On
	c.mu.Unlock()
	// Questions without an answer fail at once, and nothing is asked until there is another
	// agent.
	defer c.attach(nil, Message{})
	c.look()
	for {
		m, files, err := conn.ReceiveAll()
		if errors.Is(err, unix.ECONNRESET) {
			continue // it ended before it had read all; what it has said can still be read
		}
		if err != nil {
			return err
		}
		if err := c.handle(ctx, g, m, files); err != nil {
			return err
		}
	}
}

// attach begins a session with an agent, by its hello, and ends one where conn is nil.
// Questions to the previous agent fail.
func (c *Client) attach(conn *Conn, hello Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Everything that is said of this agent begins anew: the previous one's knowledge went
	// with it.
	c.keeping.attach(hello.Keeps, time.Duration(hello.Holds)*time.Millisecond)
	c.conn, c.named, c.told, c.pinged, c.complete = conn, map[uint64]bool{}, false, false, false
	c.owners, c.answersStays, c.toldParts = hello.Owners, hello.Stays, nil
	if hello.PartKeys {
		c.toldParts = map[toldPart]bool{}
	}
	for sequence, answer := range c.waiting {
		close(answer)
		delete(c.waiting, sequence)
	}
}

// handle handles a message of the agent. It must not block for long: pings are among the
// messages.
func (c *Client) handle(ctx context.Context, g *errgroup.Group, m Message, files []*os.File) error {
	switch m.Kind {
	// The listener is served even if this proxy serves one of the same place: the agent may
	// have been replaced, and opened another.
	case Listening:
		defer files[0].Close()
		if ctx.Err() != nil {
			return nil // this proxy is about to end
		}
		l, err := newListener(m, files[0])
		if err != nil {
			return fmt.Errorf("the agent sent %w", err)
		}
		c.start(ctx, g, l)
		return nil
	case Withdrawn:
		c.withdraw(func(id uint64) bool { return id == m.ID })
	// Listeners of an earlier agent that this one has not named are not fed any more.
	case Complete: // those of an agent before it that it knows nothing of
		c.withdraw(func(id uint64) bool { return !c.named[id] })
		c.completed()
	case Ping:
		return c.pong()
	case Kept:
		c.takeKept(m.ID, files)
		return nil
	case AllKept:
		if c.keeping.settled != nil {
			c.keeping.settled()
		}
	case Called:
		if c.called != nil {
			c.called(titleOf(m))
		}
	case Yield:
		if c.yield != nil {
			c.yield()
		}
	// In a goroutine of its own: what it calls may block on the network.
	case LastPush:
		if c.ended != nil {
			g.Go(func() error { c.ended(ctx, m.Job, m.Node); return nil })
		}
	case Result:
		c.mu.Lock()
		defer c.mu.Unlock()
		if answer, ok := c.waiting[m.Sequence]; ok {
			delete(c.waiting, m.Sequence)
			answer <- m
		}
	}
	for _, f := range files { // other kinds are for later versions of this one
		f.Close()
	}
	return nil
}

// start serves a listener, in the place of an earlier one.
func (c *Client) start(ctx context.Context, g *errgroup.Group, l *Listener) {
	at := place{l.Cgroup, l.Netns, l.Addr().(*net.TCPAddr).IP.To4() == nil, l.Mesh}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	// Connects of both listeners are served for a while, since some may be in the queue of
	// the earlier one.
	before, replaced := c.serving[at]
	c.serving[at] = served{l.ID, cancel}
	c.named[l.ID] = true
	c.mu.Unlock()
	g.Go(func() error {
		defer cancel()
		if err := c.serve(ctx, l); err != nil {
			return fmt.Errorf("serving the listener at %s: %w", l.Addr(), err)
		}
		return nil
	})
	if replaced {
		g.Go(func() error {
			select {
			case <-ctx.Done():
			case <-time.After(c.linger):
			}
			before.stop()
			return nil
		})
	}
}

// withdraw stops serving the listeners that which selects.
func (c *Client) withdraw(which func(id uint64) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, s := range c.serving {
		if which(s.id) {
			s.stop()
			delete(c.serving, at)
		}
	}
}

// completed notes that this agent has named all its listeners.
func (c *Client) completed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.complete {
		c.complete = true
		c.sessions++
	}
}

// Session returns the number of agents so far that have named all their listeners, and 0
// while the current one has not.
func (c *Client) Session() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.complete {
		return 0
	}
	return c.sessions
}

// Alive sets a function without whose consent pings are not answered. The agent takes a proxy
// that does not answer for stuck.
func (c *Client) Alive(alive func() error) { c.alive = alive }

// LastPushes sets a function that is called, in a goroutine of its own, for each worker that
// has told its job's scheduler, on a connection that bypasses the proxy, that it pushes no
// more.
func (c *Client) LastPushes(ended func(ctx context.Context, job string, node int32)) { c.ended = ended }

// Carried sets a function whose result goes to the agent with each answer to a ping.
func (c *Client) Carried(carried func() (job, far uint64)) { c.carried = carried }

// Crowded sets a function that returns the cgroup whose connects are to go direct, or 0, likewise.
func (c *Client) Crowded(crowded func() uint64) { c.crowded = crowded }

// pong answers a ping, if the proxy is alive.
func (c *Client) pong() error {
	// Without an answer the agent takes the proxy for stuck, and connects go direct.
	if c.alive != nil {
		if err := c.alive(); err != nil {
			slog.Error("cannot send a keepalive to the agent", "error", err)
			return nil
		}
	}
	c.mu.Lock()
	conn := c.conn
	first := !c.pinged
	c.pinged = true
	c.mu.Unlock()
	// SetFull may have been called before this agent was known to understand it.
	if first {
		c.look()
	}
	m := Message{Kind: Pong}
	if c.carried != nil {
		m.Carried = new(Carried)
		m.Carried.Job, m.Carried.Far = c.carried()
	}
	if c.crowded != nil {
		m.Crowded = c.crowded()
	}
	if err := conn.Send(m, nil); err != nil && !hasGone(err) {
		return err
	}
	if err := c.tellParts(conn); err != nil && !hasGone(err) {
		return err
	}
	return nil // the session ends when all that an agent has said is read
}

// SetFailClosed has connects of a cgroup fail, from the next one on, while no proxy can take
// them (on), or go direct. Once it has returned without error that is in effect, and stays so
// when proxy and agent end.
func (c *Client) SetFailClosed(ctx context.Context, cgroup uint64, on bool) error {
	if _, err := c.ask(ctx, Message{Kind: FailClosed, Cgroup: cgroup, On: on}); err != nil {
		return fmt.Errorf("setting fail-closed for cgroup %d: %w", cgroup, err)
	}
	return nil
}

// ask sends a question and returns its Result. It blocks until that has come, the session
// ends, or ctx does.
func (c *Client) ask(ctx context.Context, question Message) (Message, error) {
	// Buffered, so that a result which comes after ctx has ended blocks nobody.
	answer := make(chan Message, 1)
	c.mu.Lock()
	conn := c.conn
	c.sequence++
	question.Sequence = c.sequence
	if conn != nil {
		c.waiting[question.Sequence] = answer
	}
	c.mu.Unlock()
	if conn == nil {
		return Message{}, fmt.Errorf("%w at %s", ErrNoAgent, c.socket)
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, question.Sequence)
	}()
	if err := conn.Send(question, nil); err != nil {
		return Message{}, err
	}
	select {
	case <-ctx.Done():
		return Message{}, ctx.Err()
	case m, ok := <-answer:
		if !ok {
			return Message{}, fmt.Errorf("%w any more: it has disconnected", ErrNoAgent)
		}
		if m.Error != "" {
			return Message{}, errors.New(m.Error)
		}
		return m, nil
	}
}
