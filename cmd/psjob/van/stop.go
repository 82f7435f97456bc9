package van

import (
	"context"
	"errors"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Stop ends the node in order: queued messages are written, and acknowledgements are
// awaited as long as the peers are there. It returns what ended the van early, if
// anything did. It blocks for some seconds at most if peers are gone. A job's nodes
// call it after a barrier of all of them, when no message matters any more except the
// answers to that barrier.
func (v *Van) Stop(ctx context.Context) error {
	v.stopping.Store(true)
	if v.ctx.Err() == nil {
		v.linger(ctx)
	}
	// Read before closeAll gives the context a cause of its own.
	cause := context.Cause(v.ctx)
	if err := v.closeAll(); err != nil {
		return err
	}
	if cause != nil && !errors.Is(cause, errStopped) {
		return cause
	}
	return nil
}

// linger gives messages a last chance, and then sends TERMINATE to this node, as
// PS-lite does: when it has come back, everything that was sent to this node over its
// own connection has been handled. All of it together takes a few seconds at most, or
// ten timeouts of the resender.
func (v *Van) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(v.config.Patience, max(5*time.Second, 10*v.config.ResendTimeout)))
	defer cancel()
	v.mu.Lock()
	var dealers []*dealer
	for id, d := range v.dealers {
		// A node without a connection to this one has ended before: messages for it
		// would wait in vain.
		if id == int(v.self.ID) || v.inbound[id] > 0 {
			dealers = append(dealers, d)
		}
	}
	v.mu.Unlock()
	for _, d := range dealers {
		d.drain(ctx)
	}
	if r := v.resender.Load(); r != nil {
		for r.left() > 0 && ctx.Err() == nil && v.ctx.Err() == nil {
			v.forgetGone(r)
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

// forgetGone drops messages to nodes that have closed their connections: they will
// not acknowledge them any more.
func (v *Van) forgetGone(r *resender) {
	v.mu.Lock()
	var gone []int
	for id := range v.dealers {
		if v.inbound[id] == 0 && time.Since(v.goneSince[id]) > goneAfter {
			gone = append(gone, id)
		}
	}
	v.mu.Unlock()
	for _, id := range gone {
		r.dropNode(id)
	}
}
