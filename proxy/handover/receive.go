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

// Client is a proxy's side. Its methods may be called from several goroutines.
type Client struct {
	socket string // for messages
	dial   func(context.Context) (*net.UnixConn, error)
	serve  func(context.Context, *Listener) error
	// linger is how long a listener that another has replaced is still
	// served, for connects that were on their way to it.
	linger time.Duration
	alive  func() error                                      // nil: pings are always answered
	ended  func(ctx context.Context, job string, node int32) // nil: nobody wants to know of last pushes
	called func(Title)                                       // nil: nobody wants to know what jobs are called
	yield  func()                                            // nil: this proxy does not end for another
	// carried returns the proxy's load; nil: it is not reported.
	carried func() (job, far uint64)

	mu       sync.Mutex // guards the rest
	conn     *Conn      // nil while there is no agent
	sequence uint64
	waiting  map[uint64]chan Message // questions, by sequence
	serving  map[place]served        // of each place the last one
	named    map[uint64]bool         // listeners that this agent has named
	full     bool                    // the proxy takes no more connections
	told     bool                    // what the agent knows of that
	pinged   bool                    // this agent knows of pings, and of full
	sessions uint64                  // agents that have named all their listeners
	complete bool                    // this one has
	owners   bool                    // this agent answers queries for listeners' owners
	// answersStays: likewise, whether it stays.
	answersStays bool
	changed      chan struct{} // full may have, and the kept connections
	keeping      keeping
	stay         <-chan struct{} // until when a session lasts, beyond Run's context; nil: not
}

// place is what there is one listener for.
type place struct {
	cgroup, netns uint64
	six, mesh     bool
}

type served struct {
	id   uint64
	stop context.CancelFunc
}

// retry is the pause between attempts to reach the agent.
const retry = 500 * time.Millisecond

const linger = 2 * time.Second

// NewClient returns a client of the agent at the socket (empty:
// [DefaultSocket]). serve is called, in a goroutine of its own, for each
// listener that is handed over, and must close it and return when its context
// ends: the listener is withdrawn, or was replaced.
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

// NewLocalClient is [NewClient] for an agent in the same process: dial returns
// one end of a [Pair] whose other end the agent attends to.
func NewLocalClient(dial func(context.Context) (*net.UnixConn, error), serve func(context.Context, *Listener) error) *Client {
	return newClient("this process", dial, serve)
}

func newClient(name string, dial func(context.Context) (*net.UnixConn, error), serve func(context.Context, *Listener) error) *Client {
	return &Client{socket: name, dial: dial, serve: serve, linger: linger, waiting: map[uint64]chan Message{}, serving: map[place]served{},
		changed: make(chan struct{}, 1)}
}

// Run takes listeners until ctx ends, or serve fails, or the agent refuses
// this proxy. While there is no agent it keeps serving what it has, and looks
// for one.
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
			case errors.Is(err, errRefused):
				return err
			case err.Error() != told: // not every half second
				told = err.Error()
				slog.Warn("no agent; serving the listeners that are there, and looking for one", "socket", c.socket, "error", err)
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

var errRefused = errors.New("the agent refuses this proxy")

// session talks with one agent until it or talking ends. Listeners are served until
// ctx does.
func (c *Client) session(ctx, talking context.Context, g *errgroup.Group) error {
	raw, err := c.dial(talking)
	if err != nil {
		return fmt.Errorf("connecting to the agent: %w", err)
	}
	conn := NewConn(raw)
	defer conn.Close()
	stop := context.AfterFunc(talking, func() { conn.Close() })
	defer stop()
	if err := trust(conn); err != nil {
		return err
	}
	hello := Message{Kind: Hello, Version: Version, Mesh: true, Yields: c.yield != nil}
	if c.keeping.take != nil {
		hello.Keeps = 1
	}
	if err := conn.Send(hello, nil); err != nil {
		return err
	}
	m, _, err := conn.Receive()
	switch {
	case err != nil:
		return err
	case m.Kind == Refused:
		return fmt.Errorf("%w: %s", errRefused, m.Error)
	case m.Kind != Hello || m.Version != Version:
		return fmt.Errorf("%w: it speaks version %d of the protocol, this is %d", errRefused, m.Version, Version)
	}
	if c.keeping.take == nil {
		m.Keeps = 0
	}
	c.attach(conn, m)
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

// attach sets the agent that questions go to, with its hello; those to the one before
// fail.
func (c *Client) attach(conn *Conn, hello Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keeping.attach(hello.Keeps, time.Duration(hello.Holds)*time.Millisecond)
	c.conn, c.named, c.told, c.pinged, c.complete = conn, map[uint64]bool{}, false, false, false
	c.owners, c.answersStays = hello.Owners, hello.Stays
	for sequence, answer := range c.waiting {
		close(answer)
		delete(c.waiting, sequence)
	}
}

func (c *Client) handle(ctx context.Context, g *errgroup.Group, m Message, files []*os.File) error {
	switch m.Kind {
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

// start serves a listener, in the place of another where there was one.
func (c *Client) start(ctx context.Context, g *errgroup.Group, l *Listener) {
	at := place{l.Cgroup, l.Netns, l.Addr().(*net.TCPAddr).IP.To4() == nil, l.Mesh}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
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

// completed counts an agent that has named all its listeners, once.
func (c *Client) completed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.complete {
		c.complete = true
		c.sessions++
	}
}

// Session counts the agents that have named all their listeners, the present one
// included; it is 0 while there is none, or it has not yet.
func (c *Client) Session() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.complete {
		return 0
	}
	return c.sessions
}

// Alive has pings answered only while there is no error: an agent takes a proxy
// that does not answer for stuck. Call it before Run.
func (c *Client) Alive(alive func() error) { c.alive = alive }

// LastPushes has ended called, in a goroutine of its own, for each worker that has
// told its job's scheduler, on a connection that bypasses the proxy, that it pushes
// no more. Call it before Run.
func (c *Client) LastPushes(ended func(ctx context.Context, job string, node int32)) { c.ended = ended }

// Carried sets the function whose result is reported to the agent with each answer
// to a ping. Call it before Run.
func (c *Client) Carried(carried func() (job, far uint64)) { c.carried = carried }

// pong shows that this proxy is not stuck.
func (c *Client) pong() error {
	if c.alive != nil {
		if err := c.alive(); err != nil {
			slog.Error("the agent is not told that this proxy is alive", "error", err)
			return nil
		}
	}
	c.mu.Lock()
	conn := c.conn
	first := !c.pinged
	c.pinged = true
	c.mu.Unlock()
	if first {
		c.look()
	}
	m := Message{Kind: Pong}
	if c.carried != nil {
		m.Carried = new(Carried)
		m.Carried.Job, m.Carried.Far = c.carried()
	}
	if err := conn.Send(m, nil); err != nil && !hasGone(err) {
		return err
	}
	return nil // the session ends when all that an agent has said is read
}

// SetFailClosed has connects of the cgroup fail, from the next one on, while no
// proxy can take them; off lets them go direct again. When it returns without
// error that is so, and stays so when proxy and agent end.
func (c *Client) SetFailClosed(ctx context.Context, cgroup uint64, on bool) error {
	if _, err := c.ask(ctx, Message{Kind: FailClosed, Cgroup: cgroup, On: on}); err != nil {
		return fmt.Errorf("setting fail-closed for cgroup %d: %w", cgroup, err)
	}
	return nil
}

// ask sends a question and returns its Result.
func (c *Client) ask(ctx context.Context, question Message) (Message, error) {
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
			return Message{}, fmt.Errorf("%w any more: it has gone", ErrNoAgent)
		}
		if m.Error != "" {
			return Message{}, errors.New(m.Error)
		}
		return m, nil
	}
}
