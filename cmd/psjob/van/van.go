// Package van connects a node of a PS-lite job with the others: it registers
// with the scheduler (or is it), learns who is there, carries messages, waits
// at barriers, repeats what got lost and sends heartbeats, all as PS-lite does
// on the wire, so that its nodes and PS-lite's can stand in one job.
//
// Every node listens on one ROUTER socket and has a DEALER to each node of
// another role, to the scheduler and to itself. Package kv stands on top of
// it. Nothing waits for ever: every wait is logged from time to time and ends
// with an error when the van's patience does.
package van

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// A Van is safe for concurrent use.
type Van struct {
	config   Config
	ctx      context.Context // ends with the van; its cause is why
	cancel   context.CancelCauseFunc
	group    *errgroup.Group
	listener net.Listener
	resender *resender  // nil without PS_RESEND
	incoming *sync.Pool // of *Message

	mu        sync.Mutex
	self      pslite.Node
	dealers   map[int]*dealer // by node id
	customers map[[2]int]*Customer
	added     chan struct{}     // closed and renewed when a customer is added
	inbound   map[int]int       // connections from each node
	goneSince map[int]time.Time // when the last connection of a node ended
	lastHeard map[int]time.Time

	roster     *roster // of the scheduler
	ready      chan struct{}
	isReady    atomic.Bool
	barrier    chan struct{} // a token when a barrier opens
	terminated chan struct{}
	stopping   atomic.Bool
	timestamp  atomic.Int32
	received   atomic.Int64
	droppedIn  atomic.Int64
	refused    atomic.Int64 // connections that were not PS-lite's
}

// Start binds the node's address, registers it and waits until all nodes are
// there. The van lives until Stop, or until ctx ends.
func Start(ctx context.Context, c Config) (*Van, error) {
	c = c.withDefaults()
	v := &Van{config: c, dealers: make(map[int]*dealer), customers: make(map[[2]int]*Customer),
		added: make(chan struct{}), inbound: make(map[int]int), goneSince: make(map[int]time.Time), lastHeard: make(map[int]time.Time),
		ready: make(chan struct{}), barrier: make(chan struct{}, 1), terminated: make(chan struct{})}
	v.incoming = &sync.Pool{New: func() any { return &Message{pool: v.incoming} }}
	if err := v.bind(); err != nil {
		return nil, err
	}
	v.ctx, v.cancel = context.WithCancelCause(ctx)
	v.group = new(errgroup.Group)
	v.begin(v.accept)
	v.begin(v.watchConnections)
	if err := v.register(ctx); err != nil {
		v.fail(err)
		return nil, errors.Join(err, v.end())
	}
	return v, nil
}

// begin starts a goroutine of the van; its error ends the van.
func (v *Van) begin(f func(context.Context) error) {
	v.group.Go(func() error {
		err := f(v.ctx)
		if err != nil && v.ctx.Err() == nil {
			v.fail(err)
		}
		return nil
	})
}

// fail ends the van with a cause, which everybody who waits gets.
func (v *Van) fail(err error) { v.cancel(err) }

// end closes everything and waits for the van's goroutines.
func (v *Van) end() error {
	v.cancel(errStopped)
	v.listener.Close()
	return v.group.Wait()
}

var errStopped = errors.New("the node has stopped")

// bind listens on the node's address.
func (v *Van) bind() error {
	host, err := v.config.ownHost()
	if err != nil {
		return err
	}
	port, variable := v.config.Port, "PORT"
	if v.config.Role == pslite.Scheduler {
		port, variable = v.config.RootPort, "DMLC_PS_ROOT_PORT"
	}
	address := net.JoinHostPort(host, strconv.Itoa(port))
	v.listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		if port == 0 {
			variable = "DMLC_NODE_HOST or DMLC_INTERFACE"
		}
		return fmt.Errorf("listening on %s (see %s): %w", address, variable, err)
	}
	v.self = pslite.Node{Role: v.config.Role, ID: pslite.Empty, Hostname: host,
		Port: int32(v.listener.Addr().(*net.TCPAddr).Port)}
	if v.config.Role == pslite.Scheduler {
		v.self.ID = pslite.SchedulerID
		v.roster = newRoster(v.config.Servers, v.config.Workers)
	}
	if v.config.Verbose > 0 {
		v.config.Logger.Info("listening", "role", v.config.Role.String(), "address", v.listener.Addr().String())
	}
	return nil
}

// register makes this node known and waits for the node table.
func (v *Van) register(ctx context.Context) error {
	root := pslite.Node{Role: pslite.Scheduler, ID: pslite.SchedulerID, Hostname: v.config.Root, Port: int32(v.config.RootPort)}
	v.connect(root)
	if v.config.Role != pslite.Scheduler {
		m := NewMessage(schedulerID)
		m.Meta.Control = pslite.Control{Cmd: pslite.AddNode, Nodes: []pslite.Node{v.self}}
		m.Meta.Timestamp = v.nextTimestamp()
		if err := v.Send(ctx, m); err != nil {
			return err
		}
	}
	err := v.wait(ctx, v.ready, v.config.Patience, func() string {
		if v.roster != nil {
			v.mu.Lock()
			defer v.mu.Unlock()
			return "all nodes of the job: " + v.roster.missing()
		}
		return fmt.Sprintf("the node table from %s (see DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT; other nodes may be missing)", v.describe([]int{schedulerID}))
	})
	if err != nil {
		return err
	}
	if v.config.Resend {
		sleep(ctx, resendSettle)
	}
	if v.config.Heartbeat > 0 && v.config.Role != pslite.Scheduler {
		v.begin(v.heartbeats)
	}
	if v.config.HeartbeatTimeout > 0 {
		v.begin(v.watchHeartbeats)
	}
	return nil
}

// resendSettle is how long a node with PS_RESEND is silent after it has learnt
// the node table: PS-lite's nodes notice with a delay of up to 100 ms, neither
// acknowledge nor recognise what comes before, and would count a repetition
// twice.
const resendSettle = 250 * time.Millisecond

// becomeReady is called once, when all nodes are known.
func (v *Van) becomeReady() {
	if v.config.Resend {
		v.resender = newResender(v.config.ResendTimeout)
		v.begin(v.repeat)
	}
	v.isReady.Store(true)
	close(v.ready)
}

// connect opens a DEALER to a node, in place of an earlier one. Nodes of one
// role have nothing to say to each other.
func (v *Van) connect(n pslite.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.Role == v.self.Role && n.ID != v.self.ID {
		return
	}
	identity := ""
	if v.self.ID != pslite.Empty {
		identity = "ps" + strconv.Itoa(int(v.self.ID))
	}
	d := newDealer(nodeName(n), address(n), identity, v.config)
	ctx, stop := context.WithCancel(v.ctx)
	if old := v.dealers[int(n.ID)]; old != nil {
		v.group.Go(func() error { old.retire(v.ctx); return nil })
	}
	d.stop, d.give = stop, v.fail
	v.dealers[int(n.ID)] = d
	v.group.Go(func() error { d.run(ctx); stop(); return nil })
}

func nodeName(n pslite.Node) string {
	if n.Role == pslite.Scheduler {
		return "the scheduler"
	}
	return fmt.Sprintf("%v %d", n.Role, n.ID)
}

// describe names nodes and how their connections are, for logs and errors.
func (v *Van) describe(ids []int) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var parts []string
	for _, id := range ids {
		d := v.dealers[id]
		if d == nil {
			parts = append(parts, fmt.Sprintf("node %d", id))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s at %s (%s)", d.name, d.address, d.state()))
		if len(parts) == 4 && len(ids) > 4 {
			parts = append(parts, fmt.Sprintf("and %d more", len(ids)-4))
			break
		}
	}
	return strings.Join(parts, ", ")
}

// ID returns this node's id.
func (v *Van) ID() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return int(v.self.ID)
}

// Rank returns this node's rank in its role.
func (v *Van) Rank() int {
	_, rank, _ := pslite.Rank(int32(v.ID()))
	return rank
}

// Config returns what the van was started with, defaults filled in.
func (v *Van) Config() Config { return v.config }

// Context ends when the van does; its cause says why.
func (v *Van) Context() context.Context { return v.ctx }

// Members returns the ids of a group's nodes.
func (v *Van) Members(group int) []int { return members(group, v.config.Servers, v.config.Workers) }

func (v *Van) nextTimestamp() int32 { return v.timestamp.Add(1) - 1 }

// Send sends m to m.Recver. It does not copy m's data, which must not change
// before the message has been answered (with PS_RESEND it is copied).
func (v *Van) Send(ctx context.Context, m *Message) error {
	v.mu.Lock()
	d, from := v.dealers[m.Recver], int(v.self.ID)
	v.mu.Unlock()
	if d == nil {
		return fmt.Errorf("there is no connection to node %d", m.Recver)
	}
	if v.config.Verbose > 1 {
		v.config.Logger.Info("send", "message", m.String(), "to", m.Recver)
	}
	o := outgoing{frames: m.frames()}
	command := m.command()
	if v.resender != nil && command != pslite.Ack && command != pslite.Terminate {
		var err error
		if o, err = v.resender.keep(ctx, m.signature(from, m.Recver), m.Recver, o.frames); err != nil {
			return err
		}
		if m.Written != nil {
			m.Written() // it was copied
		}
	} else {
		o.written = m.Written
	}
	o.control = command != pslite.NoCommand
	return d.send(ctx, o)
}

// Barrier waits until all nodes of a group have come to it.
func (v *Van) Barrier(ctx context.Context, group int) error {
	return v.barrierWithin(ctx, group, v.config.Patience)
}

// AwaitEnd waits at a barrier of all nodes for as long as the job takes: it
// ends when all have come, or with the van.
func (v *Van) AwaitEnd(ctx context.Context) error {
	return v.barrierWithin(ctx, Everyone, 0)
}

func (v *Van) barrierWithin(ctx context.Context, group int, patience time.Duration) error {
	if len(v.Members(group)) <= 1 {
		return nil
	}
	m := NewMessage(schedulerID)
	m.Meta.Request = true
	m.Meta.AppID = 0
	m.Meta.CustomerID = 0
	m.Meta.Timestamp = v.nextTimestamp()
	m.Meta.Control = pslite.Control{Cmd: pslite.Barrier, BarrierGroup: int32(group)}
	if err := v.Send(ctx, m); err != nil {
		return fmt.Errorf("at the barrier: %w", err)
	}
	return v.wait(ctx, v.barrier, patience, func() string {
		return fmt.Sprintf("the other nodes of group %d at the barrier, by way of %s", group, v.describe([]int{schedulerID}))
	})
}

// Finalize waits at a barrier of all nodes and stops.
func (v *Van) Finalize(ctx context.Context) error {
	err := v.AwaitEnd(ctx)
	return errors.Join(err, v.Stop(ctx))
}

// Stop ends the node in order: what waits is written, what is to be
// acknowledged is waited for as long as the peers are there. It returns what
// ended the van early, if anything did.
func (v *Van) Stop(ctx context.Context) error {
	v.stopping.Store(true)
	if v.ctx.Err() == nil {
		v.linger(ctx)
	}
	cause := context.Cause(v.ctx)
	if err := v.end(); err != nil {
		return err
	}
	if cause != nil && !errors.Is(cause, errStopped) {
		return cause
	}
	return nil
}

// linger gives messages a last chance, and sends TERMINATE to this node, as
// PS-lite does.
func (v *Van) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(v.config.Patience, max(5*time.Second, 10*v.config.ResendTimeout)))
	defer cancel()
	v.mu.Lock()
	var dealers []*dealer
	for id, d := range v.dealers {
		if id == int(v.self.ID) || v.inbound[id] > 0 {
			dealers = append(dealers, d)
		}
	}
	v.mu.Unlock()
	for _, d := range dealers {
		d.drain(ctx)
	}
	if v.resender != nil {
		for v.resender.left() > 0 && ctx.Err() == nil && v.ctx.Err() == nil {
			v.forgetGone()
			sleep(ctx, 5*time.Millisecond)
		}
	}
	m := NewMessage(v.ID())
	m.Meta.Control = pslite.Control{Cmd: pslite.Terminate}
	m.Meta.CustomerID = 0
	if v.Send(ctx, m) != nil {
		return
	}
	select {
	case <-v.terminated:
	case <-ctx.Done():
	case <-v.ctx.Done():
	}
}

// goneAfter is how long a node may be without a connection to us before we
// take it for gone when we stop; one that only lost it connects again sooner.
const goneAfter = 10 * reconnectEvery

// forgetGone drops unacknowledged messages to nodes that have closed their
// connections: they will not acknowledge any more.
func (v *Van) forgetGone() {
	v.mu.Lock()
	var gone []int
	for id := range v.dealers {
		if v.inbound[id] == 0 && time.Since(v.goneSince[id]) > goneAfter {
			gone = append(gone, id)
		}
	}
	v.mu.Unlock()
	for _, id := range gone {
		v.resender.forget(id)
	}
}

// addCustomer makes c reachable.
func (v *Van) addCustomer(c *Customer) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := [2]int{c.app, c.id}
	if v.customers[at] != nil {
		return fmt.Errorf("app %d has a customer %d already", c.app, c.id)
	}
	v.customers[at] = c
	close(v.added)
	v.added = make(chan struct{})
	return nil
}

// Traffic is what went to one node.
type Traffic struct {
	Node     int   `json:"node"`
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"` // of frame bodies
}

// Statistics counts what a van did.
type Statistics struct {
	Sent            []Traffic `json:"sent"`
	Received        int64     `json:"received"`         // messages
	Repeated        int64     `json:"repeated"`         // sent again for want of an acknowledgement
	Duplicates      int64     `json:"duplicates"`       // received again
	Dropped         int64     `json:"dropped"`          // thrown away by PS_DROP_MSG
	ControlOverflow int64     `json:"control_overflow"` // control messages without room
	Refused         int64     `json:"refused"`          // connections that did not speak ZMTP
}

// Statistics returns the counts so far.
func (v *Van) Statistics() Statistics {
	s := Statistics{Received: v.received.Load(), Dropped: v.droppedIn.Load(), Refused: v.refused.Load()}
	if v.resender != nil {
		s.Repeated, s.Duplicates = v.resender.repeats.Load(), v.resender.duplicates.Load()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, d := range v.dealers {
		s.Sent = append(s.Sent, Traffic{Node: id, Messages: d.messages.Load(), Bytes: d.bytes.Load()})
		s.ControlOverflow += d.dropped.Load()
	}
	slices.SortFunc(s.Sent, func(a, b Traffic) int { return a.Node - b.Node })
	return s
}
