package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// A proxy that is to replace another is started beside it, and waits at the agent for its
// turn: the agent has the other one end in order, and tells this one when that is gone with
// everything that it held. The job then waits only for the passage of its connections, not
// for the start of a process.

// AwaitTurn blocks until the agent at the socket (empty: [DefaultSocket]) has no other proxy,
// none that is about to end included; those that know how are asked to end. It waits for an
// agent if there is none. One of a version without turns lets the proxy begin at once.
func AwaitTurn(ctx context.Context, socket string) error {
	if socket == "" {
		socket = DefaultSocket
	}
	for told := ""; ; {
		err := awaitTurn(ctx, socket)
		switch {
		case err == nil, errors.Is(err, errRefused):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case err.Error() != told: // not every half second
			told = err.Error()
			slog.Warn("no agent; waiting for one to start this proxy's turn", "socket", socket, "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
	}
}

// awaitTurn is AwaitTurn with one agent, in one session.
func awaitTurn(ctx context.Context, socket string) error {
	raw, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return fmt.Errorf("connecting to the agent: %w", err)
	}
	conn := NewConn(raw.(*net.UnixConn))
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := trust(conn); err != nil {
		return err
	}
	if err := conn.Send(Message{Kind: Hello, Version: Version, Waits: true}, nil); err != nil {
		return err
	}
	// An agent with turns answers the hello, and then sends Turn when it is time.
	m, _, err := conn.Receive()
	if err == nil && m.Kind == Hello && m.Turns {
		slog.Info("waiting for the previous proxy")
	}
	for ; ; m, _, err = conn.Receive() {
		switch {
		case err != nil:
			return err
		case m.Kind == Refused:
			return fmt.Errorf("%w: %s", errRefused, m.Error)
		case m.Kind == Turn:
			return nil
		// Waiting for an agent that never says Turn would keep the host without a proxy.
		case m.Kind == Hello && !m.Turns:
			slog.Warn("the agent is older and does not coordinate the replacement: stop the previous proxy")
			return nil
		}
	}
}

// Yields sets a function that is called when another proxy waits for its turn: this one is to
// end in order. It must not block. Call it before Run.
func (c *Client) Yields(yield func()) { c.yield = yield }
