package van

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// bind listens on the node's address: the scheduler at the address that all nodes
// know, others at any port, which they register. Connections queue up in the kernel
// until accept takes them. An error names the variable that decides on the address.
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
	v.listener, err = (&net.ListenConfig{KeepAlive: noKeepalive}).Listen(context.Background(), "tcp", address)
	if err != nil {
		if port == 0 {
			variable = "DMLC_NODE_HOST or DMLC_INTERFACE"
		}
		return fmt.Errorf("listening on %s (see %s): %w", address, variable, err)
	}
	// The port is known now, and with it the address by which the node table is
	// searched.
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

// register registers this node with the scheduler and blocks until the node table has
// come; the scheduler waits until all have registered.
func (v *Van) register(ctx context.Context) error {
	root := pslite.Node{Role: pslite.Scheduler, ID: pslite.SchedulerID, Hostname: v.config.Root, Port: int32(v.config.RootPort)}
	// The scheduler connects to itself as well: its barriers go the same way as
	// everybody's.
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
	if err == nil && v.Recovered() {
		err = v.awaitPeers(ctx)
	}
	if err != nil {
		return err
	}
	if v.config.Resend {
		sleep(ctx, resendSettle)
	}
	if v.config.Heartbeat > 0 && v.config.Role != pslite.Scheduler {
		v.startGoroutine(v.heartbeats)
	}
	if v.config.HeartbeatTimeout > 0 {
		v.startGoroutine(v.watchHeartbeats)
	}
	return nil
}

// becomeReady is called once, when all nodes are known: on the scheduler by the
// reader that enrolled the last node, elsewhere by the reader that received the node
// table. The resender comes first, since a reader that sees isReady uses it. Closing
// ready releases register.
func (v *Van) becomeReady() {
	if v.config.Resend {
		v.resender.Store(newResender(v.config.ResendTimeout))
		v.startGoroutine(v.repeat)
	}
	v.isReady.Store(true)
	close(v.ready)
}

// connect opens a DEALER to a node in place of an earlier one. Nodes of one role have
// nothing to say to each other, but each has a connection to itself.
func (v *Van) connect(n pslite.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.Role == v.self.Role && n.ID != v.self.ID {
		return
	}
	// A node has no id before the table has arrived, so its first connection to the
	// scheduler has no identity. It is replaced by one that has, by which the
	// scheduler recognizes the sender of each message.
	identity := ""
	if v.self.ID != pslite.Empty {
		identity = "ps" + strconv.Itoa(int(v.self.ID))
	}
	d := newDealer(nodeName(n), address(n), identity, v.config)
	ctx, stop := context.WithCancel(v.ctx)
	// Messages that still wait on the old one, such as the registration, are written
	// first; those for a node that was replaced are not for the one in its place.
	if old := v.dealers[int(n.ID)]; old != nil && old.address == d.address {
		v.group.Go(func() error { old.retire(v.ctx); return nil })
	} else if old != nil {
		old.stop()
	}
	d.stop, d.give = stop, v.fail
	v.dealers[int(n.ID)] = d
	v.group.Go(func() error { d.run(ctx); stop(); return nil })
}

// nodeName names a node for people. Until it has a rank, only the scheduler can be
// named without its id.
func nodeName(n pslite.Node) string {
	if n.Role == pslite.Scheduler {
		return "the scheduler"
	}
	return fmt.Sprintf("%v %d", n.Role, n.ID)
}

// describe names nodes and the state of their connections, for logs and errors. It
// names four at most: a message about a group of hundreds of nodes has to stay
// readable.
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
