package van

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// customerPatience is how long a message waits for its customer to appear. A node may
// send as soon as it is ready, when another may not have made its customers yet.
const customerPatience = 30 * time.Second

// receive handles one message. It runs in the goroutine of the connection, so that a
// peer's messages are handled in order. It must not wait for anything that another
// connection brings, except for a customer and its room.
func (v *Van) receive(ctx context.Context, m *Message) error {
	command := m.command()
	if v.drops(command) {
		m.Release()
		return nil
	}
	v.received.Add(1)
	if v.config.Verbose > 1 {
		v.config.Logger.Info("received", "message", m.String(), "from", m.Sender)
	}
	if command == pslite.NoCommand {
		if v.repeated(ctx, m) {
			m.Release()
			return nil
		}
		return v.deliver(ctx, m)
	}
	defer m.Release()
	// A node's message to itself, the last that it sends: everything sent before it
	// on that connection has been received.
	if command == pslite.Terminate {
		if m.Sender == v.ID() {
			select {
			case <-v.terminated:
			default:
				close(v.terminated)
			}
		}
		return nil
	}
	// An acknowledgement is not acknowledged.
	if command == pslite.Ack {
		if r := v.resender.Load(); r != nil {
			r.acknowledge(m.Meta.Control.MsgSig)
		}
		return nil
	}
	if v.repeated(ctx, m) {
		return nil
	}
	return v.control(ctx, m)
}

// drops decides whether PS_DROP_MSG throws a message away, as it does in PS-lite to
// test the resender. It drops nothing before the node is ready, when nothing would
// repeat it, nor what ends the node.
func (v *Van) drops(command pslite.Command) bool {
	if v.config.Drop == 0 || !v.isReady.Load() || command == pslite.Terminate {
		return false
	}
	if rand.IntN(100) >= v.config.Drop {
		return false
	}
	v.droppedIn.Add(1)
	return true
}

// repeated acknowledges a message and reports whether it has come before. A
// repetition is acknowledged again: its first ACK may be lost. The acknowledgement
// does not wait until the message was handled, just as in PS-lite.
func (v *Van) repeated(ctx context.Context, m *Message) bool {
	r := v.resender.Load()
	if r == nil || !v.isReady.Load() || m.Sender == int(pslite.Empty) {
		return false
	}
	signature := m.signature(m.Sender, v.ID())
	ack := NewMessage(m.Sender)
	ack.Meta.Control = pslite.Control{Cmd: pslite.Ack, MsgSig: signature}
	if err := v.Send(ctx, ack); err != nil && v.config.Verbose > 0 {
		v.config.Logger.Info("cannot send an ack", "error", err)
	}
	return r.received(signature)
}

// deliver hands a data message to its customer, and waits for the customer to appear
// and to have room.
func (v *Van) deliver(ctx context.Context, m *Message) error {
	if m.Sender == int(pslite.Empty) {
		return fmt.Errorf("a data message from a node without an id: %s", m)
	}
	app := int(m.Meta.AppID)
	// Servers have one customer for an app, whichever of the worker's customers asks;
	// the answer goes back to that one.
	customer := app
	if v.config.Role == pslite.Worker {
		customer = int(m.Meta.CustomerID)
	}
	at := [2]int{app, customer}
	deadline := time.NewTimer(customerPatience)
	defer deadline.Stop()
	for {
		v.mu.Lock()
		// Both under the lock: a customer that is added after this closes the channel
		// that was read.
		c, added := v.customers[at], v.added
		v.mu.Unlock()
		if c != nil {
			if err := c.inbox.enqueue(ctx, m); err != nil {
				return nil // the van ends
			}
			return nil
		}
		select {
		case <-added:
		case <-ctx.Done():
			return nil
		case <-deadline.C:
			return fmt.Errorf("%s from node %d is for app %d, customer %d, which this node does not have", m, m.Sender, app, customer)
		}
	}
}

// control handles a message about the job itself. Commands that it does not know are
// ignored and logged, as other generations may have more.
func (v *Van) control(ctx context.Context, m *Message) error {
	control := m.Meta.Control
	switch control.Cmd {
	case pslite.AddNode:
		if v.roster != nil {
			return v.enroll(ctx, m)
		}
		return v.takeNodeTable(m)
	case pslite.Barrier:
		if v.roster != nil && m.Meta.Request {
			return v.arrive(ctx, m)
		}
		select {
		// A node waits at one barrier at a time, so that one token is enough.
		case v.barrier <- struct{}{}:
		default:
		}
		return nil
	case pslite.Heartbeat:
		return v.heartbeat(ctx, m)
	}
	v.config.Logger.Warn("unknown command ignored", "command", int(control.Cmd), "from", m.Sender)
	return nil
}

// enroll registers a node with the scheduler and, with the last one, sends the table
// of all nodes to everybody. It runs in the goroutine of that node's connection, and
// may block while it sends: nothing else of the job has begun yet. A worker that comes
// when the job is complete waits for the place of one that has died (replace.go); any
// other node is refused in the log only, and waits until its own patience is over. It
// may be one of another job with the same scheduler's address.
func (v *Van) enroll(ctx context.Context, m *Message) error {
	if len(m.Meta.Control.Nodes) != 1 {
		return fmt.Errorf("a node registers with %d addresses: want 1", len(m.Meta.Control.Nodes))
	}
	v.mu.Lock()
	// A node with an id has been enrolled: it reconnects, or repeats its ADD_NODE.
	if m.Sender != int(pslite.Empty) {
		v.mu.Unlock()
		return nil
	}
	late := v.roster.complete
	if late && !v.config.Resend && v.roster.awaitPlace(m.Meta.Control.Nodes[0]) {
		v.mu.Unlock()
		v.config.Logger.Info("a worker waits for the place of one that has died", "address", address(m.Meta.Control.Nodes[0]))
		return nil
	}
	complete, err := v.roster.registerNode(m.Meta.Control.Nodes[0])
	v.mu.Unlock()
	if late { // the job itself is in order
		v.config.Logger.Error("node refused", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	if v.config.Verbose > 0 {
		v.config.Logger.Info("node registered", "address", address(m.Meta.Control.Nodes[0]), "state", v.roster.missing())
	}
	if !complete {
		return nil
	}
	// Processes with several customers are in the table several times, under one
	// address: they get one connection.
	connected := make(map[int32]bool)
	for _, n := range v.roster.nodes {
		if !connected[n.ID] {
			connected[n.ID] = true
			v.connect(n)
		}
	}
	table := append(append([]pslite.Node(nil), v.roster.nodes...), v.self)
	// Over the new connections, which know their peers' ids. This also answers the
	// nodes that registered over connections without an identity. becomeReady makes
	// the resender only after that, so tables are never retransmitted.
	for _, id := range v.roster.addressees(Servers + Workers) {
		back := NewMessage(id)
		back.Meta.Control = pslite.Control{Cmd: pslite.AddNode, Nodes: table}
		back.Meta.Timestamp = v.nextTimestamp()
		if err := v.Send(ctx, back); err != nil {
			return err
		}
	}
	v.becomeReady()
	return nil
}

// takeNodeTable takes over the node table. The node finds itself in it by its
// address, and with that its id. A second table says that nodes were replaced.
func (v *Van) takeNodeTable(m *Message) error {
	if v.isReady.Load() {
		v.takeReplaced(m.Meta.Control.Nodes)
		return nil
	}
	v.mu.Lock()
	for _, n := range m.Meta.Control.Nodes {
		if n.Hostname == v.self.Hostname && n.Port == v.self.Port {
			v.self = n
			v.self.Hostname = string([]byte(n.Hostname))
			break
		}
	}
	known := v.self.ID != pslite.Empty
	v.mu.Unlock()
	if !known {
		return fmt.Errorf("the scheduler's node table does not have this node's address %s", address(v.self))
	}
	for _, n := range m.Meta.Control.Nodes {
		v.connect(n)
	}
	v.becomeReady()
	return nil
}

// arrive counts a node at a barrier, and opens the barrier with the last one by
// answering all nodes of the group. A node with a slow connection gets its answer
// later than others; nobody waits for it here.
func (v *Van) arrive(ctx context.Context, m *Message) error {
	group := int(m.Meta.Control.BarrierGroup)
	v.mu.Lock()
	open, err := v.roster.arrive(group)
	v.mu.Unlock()
	if err != nil || !open {
		return err
	}
	for _, id := range v.roster.addressees(group) {
		back := NewMessage(id)
		back.Meta.AppID = m.Meta.AppID
		back.Meta.CustomerID = m.Meta.CustomerID
		back.Meta.Timestamp = v.nextTimestamp()
		back.Meta.Control = pslite.Control{Cmd: pslite.Barrier}
		if err := v.Send(ctx, back); err != nil {
			return err
		}
	}
	return nil
}

// repeat retransmits what was not acknowledged in time, and ends the van if a message
// stays without an acknowledgement for longer than the van's patience. It looks about
// four times per timeout, and at least once a second.
func (v *Van) repeat(ctx context.Context) error {
	r := v.resender.Load()
	every := min(max(r.timeout/4, 5*time.Millisecond), time.Second)
	for sleep(ctx, every) {
		due, err := r.overdue(time.Now(), v.config.Patience)
		if err != nil {
			return err
		}
		for _, u := range due {
			v.mu.Lock()
			d := v.dealers[u.to]
			v.mu.Unlock()
			o := r.outgoing(u)
			o.control = true // it has waited for room once
			if err := d.send(ctx, o); err != nil {
				return nil
			}
		}
	}
	return nil
}
