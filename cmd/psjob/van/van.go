// Package van connects a node of a PS-lite job with the others: it registers with the
// scheduler (or is it), learns the other nodes, carries messages, waits at barriers,
// retransmits lost messages and sends heartbeats, all as PS-lite does on the wire, so
// that its nodes and PS-lite's can be in one job.
//
// Every node listens on one ROUTER socket (router.go) and has a DEALER (dealer.go) to
// each node of another role, to the scheduler and to itself. So messages between two
// nodes take two connections, one in each direction. Package kv builds on it.
//
// Goroutines: one accepts, one reads each connection and handles its messages
// (receive.go), one writes to each node, one serves each customer (customer.go). All
// belong to the van's group and end with its context. Nothing waits forever: every
// wait is logged from time to time, and ends with an error when the van's patience
// does, except for the end of the job, which may take as long as it likes while all
// nodes are connected (wait.go).
//
// # Registration
//
// A node knows the scheduler's address and the numbers of servers and workers, from
// its environment. It binds a port, connects to the scheduler without an identity and
// sends ADD_NODE with its address. When the last node has registered the scheduler
// sorts them, gives them ids, connects to all and sends each the table of all nodes.
// A node finds itself in the table, takes its id, connects to the nodes of other
// roles and once more to the scheduler, now with an identity by which its messages
// are recognized. It is ready then, although others may not be: their messages wait
// until they are.
//
// # Replacement
//
// A worker that registers when all nodes are there takes the place of one that has died,
// as PS-lite's recovery has it: the scheduler sends it the table of all nodes with its
// record marked as a recovery, and the others a table of that record alone. They then
// connect to it instead. It waits at the barriers that the dead worker would have come
// to, except for the first (replace.go). With PS_RESEND no worker is replaced: the new
// one's requests have the signatures of the dead one's, and would be dropped as
// repetitions.
//
// # Barriers
//
// A node sends BARRIER with a group to the scheduler, which counts. When as many have
// come as the group has nodes it answers each of them. Neither the request nor the
// answer says which barrier it is: what keeps the nodes in step is that each waits at
// one at a time. A job has one of all nodes at its beginning and one at its end; the
// end is when every node may stop without another needing it.
//
// # Retransmission
//
// With PS_RESEND a node acknowledges every message, except for acknowledgements and
// its own TERMINATE, by a signature computed from its meta, and sends again what was
// not acknowledged in time. The receiver drops what it has seen. That survives lost
// messages, as PS_DROP_MSG makes them and broken connections do.
package van

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Van is safe for concurrent use. mu guards the tables of nodes and customers and,
// on the scheduler, the roster; it is held briefly, never while waiting. self changes
// once, when the node table gives the node its id. resender is set at the same
// moment, while readers of other connections may already look for it.
type Van struct {
	config   Config
	ctx      context.Context // ends with the van; its cause is why
	cancel   context.CancelCauseFunc
	group    *errgroup.Group // of all its goroutines
	listener net.Listener
	resender atomic.Pointer[resender] // nil without PS_RESEND, and before all nodes are known
	incoming *sync.Pool               // of *Message

	mu        sync.Mutex // guards what follows, to lastHeard
	self      pslite.Node
	dealers   map[int]*dealer // by node id
	customers map[[2]int]*Customer
	added     chan struct{}     // closed and renewed when a customer is added
	inbound   map[int]int       // how many connections each node has to this one
	goneSince map[int]time.Time // when the last connection of a node ended
	lastHeard map[int]time.Time

	roster     *roster       // nil unless this is the scheduler
	ready      chan struct{} // closed when all nodes are known
	isReady    atomic.Bool
	barrier    chan struct{} // a token when a barrier opens
	terminated chan struct{} // closed when this node's TERMINATE has come
	stopping   atomic.Bool   // peers that vanish are no news any more
	timestamp  atomic.Int32  // of control messages
	received   atomic.Int64
	droppedIn  atomic.Int64
	refused    atomic.Int64 // connections that were not PS-lite's
}

// Start binds the node's address, registers it and blocks until all nodes are there.
// The van lives until Stop, or until ctx ends.
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
	// Before registering: others may connect as soon as they have the scheduler's
	// node table.
	v.startGoroutine(v.accept)
	v.startGoroutine(v.watchConnections)
	if err := v.register(ctx); err != nil {
		v.fail(err)
		return nil, errors.Join(err, v.closeAll())
	}
	return v, nil
}

// startGoroutine starts a goroutine of the van; its error ends the van. An error
// after the end is a consequence of the closed connections and not reported.
func (v *Van) startGoroutine(f func(context.Context) error) {
	v.group.Go(func() error {
		err := f(v.ctx)
		if err != nil && v.ctx.Err() == nil {
			v.fail(err)
		}
		return nil
	})
}

// fail ends the van with a cause, which all waiters get. The first cause counts.
func (v *Van) fail(err error) { v.cancel(err) }

// closeAll closes everything and waits for the van's goroutines.
func (v *Van) closeAll() error {
	v.cancel(errStopped)
	v.listener.Close()
	return v.group.Wait()
}

var errStopped = errors.New("the node has stopped")

// resendSettle is how long a node with PS_RESEND stays silent after it has received
// the node table. PS-lite's nodes notice the table with a delay of up to 100 ms;
// before that they neither acknowledge nor recognize what comes, and would count a
// repetition twice.
const resendSettle = 250 * time.Millisecond

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

// Recovered reports whether this node has taken the place of one that has died.
func (v *Van) Recovered() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.self.IsRecovery
}

// Config returns what the van was started with, defaults filled in.
func (v *Van) Config() Config { return v.config }

// Context ends when the van does; its cause says why.
func (v *Van) Context() context.Context { return v.ctx }

// Members returns the ids of a group's nodes.
func (v *Van) Members(group int) []int { return members(group, v.config.Servers, v.config.Workers) }

func (v *Van) nextTimestamp() int32 { return v.timestamp.Add(1) - 1 }

// Send sends m to m.Recver. It does not copy m's data, which must not change before
// the message has been answered (with PS_RESEND it is copied). A data message may
// block while too many wait for the same node; control messages never do. That it
// returns says nothing about the message's arrival, only about its place in the
// order.
func (v *Van) Send(ctx context.Context, m *Message) error {
	v.mu.Lock()
	d, from := v.dealers[m.Recver], int(v.self.ID)
	v.mu.Unlock()
	if d == nil {
		return fmt.Errorf("no connection to node %d", m.Recver)
	}
	if v.config.Verbose > 1 {
		v.config.Logger.Info("send", "message", m.String(), "to", m.Recver)
	}
	o := outgoing{frames: m.frames(v.config.Dialect)}
	command := m.command()
	// An ACK is not acknowledged, and TERMINATE does not leave the node.
	if r := v.resender.Load(); r != nil && command != pslite.Ack && command != pslite.Terminate {
		var err error
		if o, err = r.keepFrames(ctx, m.signature(from, m.Recver), m.Recver, o.frames); err != nil {
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

// goneAfter is how long a node may be without a connection to this one before it is
// taken for gone when this one stops; a node that only lost its connection connects
// again sooner.
const goneAfter = 10 * reconnectEvery

// addCustomer makes c reachable, and wakes the readers that hold messages for it.
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
