package van

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// maxConnections bounds how many peers may be connected at a time, each of which
// takes a goroutine and a read buffer. It is far above what a job needs: every node
// has one connection to this one, for a moment two.
const maxConnections = 1 << 16

// accept serves the peers' connections, each in a goroutine of its own, until the van
// ends. It returns an error only if the listener is broken; a lack of file
// descriptors passes, and the peers, whose connections wait in the kernel's backlog,
// do not notice it.
func (v *Van) accept(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { v.listener.Close() })
	defer stop()
	places := make(chan struct{}, maxConnections)
	for {
		nc, err := v.listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() { // out of file descriptors, as a rule
				v.config.Logger.Warn("cannot accept a connection", "error", err)
				sleep(ctx, reconnectEvery)
				continue
			}
			return fmt.Errorf("accepting connections: %w", err)
		}
		select {
		case places <- struct{}{}:
		default:
			v.refused.Add(1)
			nc.Close()
			continue
		}
		v.group.Go(func() error {
			defer func() { <-places }()
			if err := v.serve(ctx, nc); err != nil && ctx.Err() == nil {
				v.fail(err)
			}
			return nil
		})
	}
}

// serve reads one connection until it ends. Only what goes wrong with a node of the
// job is an error; strangers are logged and counted. The same peer may have several
// connections for a while: an old one that is being read to its end, and a new one.
// Their messages are handled in two goroutines then, in no order between the two, as
// with ZeroMQ.
func (v *Van) serve(ctx context.Context, nc net.Conn) error {
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	// A peer that connects and says nothing must not keep a place.
	shake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	conn, err := zmtp.Handshake(shake, nc, zmtp.Config{SocketType: "ROUTER"})
	cancel()
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			v.refused.Add(1)
			v.config.Logger.Warn("connection rejected", "from", nc.RemoteAddr().String(), "error", err)
		}
		return nil
	}
	from, err := nodeOf(conn.Peer().Identity)
	if err != nil {
		v.refused.Add(1)
		v.config.Logger.Warn("connection rejected", "from", nc.RemoteAddr().String(), "error", err)
		return nil
	}
	v.connectionCame(from)
	defer v.connectionWent(from)
	for {
		// A new message each time: customers may still use the previous ones. The
		// pool gets it back by its last Release.
		m := v.incoming.Get().(*Message)
		m.users.Store(1)
		if err := conn.ReadMessage(&m.incoming); err != nil {
			m.Release()
			if ctx.Err() == nil && !errors.Is(err, io.EOF) && v.config.Verbose > 0 {
				v.config.Logger.Info("connection broken", "from", from, "error", err)
			}
			return nil
		}
		if err := m.decode(from, v.ID(), v.config.Dialect); err != nil {
			// A peer without an id may be anything: a port scanner must not end the
			// job. A node's message that cannot be decoded does, since its sender
			// waits for an answer that can never come.
			if from == int(pslite.Empty) {
				v.refused.Add(1)
				v.config.Logger.Warn("connection rejected", "from", nc.RemoteAddr().String(), "error", err)
				return nil
			}
			return fmt.Errorf("a message from node %d at %s: %w", from, nc.RemoteAddr(), err)
		}
		if err := v.receive(ctx, m); err != nil {
			return err
		}
	}
}

// nodeOf returns the node id of an identity "ps9", and Empty if there is none.
func nodeOf(identity []byte) (int, error) {
	if len(identity) == 0 {
		return int(pslite.Empty), nil
	}
	id, ok := pslite.ParseIdentity(identity)
	if !ok {
		return 0, fmt.Errorf("the identity %.40q is not that of a PS-lite node", identity)
	}
	return int(id), nil
}

// connectionCame and connectionWent count a node's connections, by which
// watchConnections and linger see whether it is alive. A count, not a flag: when a
// node reconnects, the new connection may begin before the old one is read to its
// end.
func (v *Van) connectionCame(from int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inbound[from]++
}

func (v *Van) connectionWent(from int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inbound[from]--
	v.goneSince[from] = time.Now()
}
