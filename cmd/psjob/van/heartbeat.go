package van

import (
	"context"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// heartbeats sends the scheduler a sign of life at every interval, until the van
// ends. It has the node's own record, as PS-lite's has.
func (v *Van) heartbeats(ctx context.Context) error {
	for sleep(ctx, v.config.Heartbeat) {
		v.mu.Lock()
		self := v.self
		v.mu.Unlock()
		m := NewMessage(schedulerID)
		m.Meta.Control = pslite.Control{Cmd: pslite.Heartbeat, Nodes: []pslite.Node{self}}
		m.Meta.Timestamp = v.nextTimestamp()
		if err := v.Send(ctx, m); err != nil {
			return nil // the van ends
		}
	}
	return nil
}

// heartbeat records a sign of life. The scheduler answers it, so that the node sees
// that the scheduler is alive; other nodes do not, or the two would answer each other
// forever.
func (v *Van) heartbeat(ctx context.Context, m *Message) error {
	for _, n := range m.Meta.Control.Nodes {
		v.mu.Lock()
		v.lastHeard[int(n.ID)] = time.Now()
		known := v.dealers[int(n.ID)] != nil
		v.mu.Unlock()
		if v.roster == nil || !known {
			continue
		}
		back := NewMessage(int(n.ID))
		back.Meta.Control = pslite.Control{Cmd: pslite.Heartbeat, Nodes: []pslite.Node{v.self}}
		back.Meta.Timestamp = v.nextTimestamp()
		if err := v.Send(ctx, back); err != nil {
			return nil // the van ends
		}
	}
	return nil
}

// watchHeartbeats logs nodes that have fallen silent: the scheduler watches all
// nodes, the others the scheduler. As in PS-lite, a silent node has no consequence
// but the log: whether it is dead, its connection says (watchConnections).
func (v *Van) watchHeartbeats(ctx context.Context) error {
	watched := []int{schedulerID}
	if v.roster != nil {
		watched = v.roster.addressees(Servers + Workers)
	}
	began := time.Now()
	silent := make(map[int]bool)
	// Often enough that the log is not later than a quarter of the timeout.
	for sleep(ctx, max(v.config.HeartbeatTimeout/4, 100*time.Millisecond)) {
		for _, id := range watched {
			v.mu.Lock()
			heard, ok := v.lastHeard[id]
			v.mu.Unlock()
			// A node that was never heard is silent since this one began to watch.
			if !ok {
				heard = began
			}
			dead := time.Since(heard) > v.config.HeartbeatTimeout
			if dead && !silent[id] && !v.stopping.Load() {
				v.config.Logger.Error("no heartbeat; the node appears to be dead (PS_HEARTBEAT_TIMEOUT)",
					"node", v.describe([]int{id}), "seconds", int(time.Since(heard).Seconds()))
			}
			if !dead && silent[id] {
				v.config.Logger.Info("heartbeats resumed", "node", id)
			}
			silent[id] = dead
		}
	}
	return nil
}
