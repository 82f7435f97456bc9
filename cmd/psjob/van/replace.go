package van

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// replaceDead gives workers that have registered late the places of workers that have died, and tells
// all nodes. The scheduler calls it, in the goroutine of watchConnections.
func (v *Van) replaceDead(ctx context.Context) error {
	for {
		v.mu.Lock()
		n, ok := v.roster.replaceDead(v.isDead)
		if !ok {
			v.mu.Unlock()
			return nil
		}
		v.goneSince[int(n.ID)] = time.Now() // it has yet to connect
		table := append(slices.Clone(v.roster.nodes), v.self)
		v.mu.Unlock()
		v.config.Logger.Info("worker replaced", "node", n.ID, "by", address(n))
		v.connect(n)
		for _, id := range v.roster.addressees(Servers + Workers) {
			back := NewMessage(id)
			back.Meta.Control = pslite.Control{Cmd: pslite.AddNode, Nodes: []pslite.Node{n}}
			if id == int(n.ID) {
				back.Meta.Control.Nodes = table
			}
			back.Meta.Timestamp = v.nextTimestamp()
			if err := v.Send(ctx, back); err != nil {
				return err
			}
		}
	}
}

// isDead reports whether a node had connections to this one and has none for long enough; the caller
// holds v.mu.
func (v *Van) isDead(id int) bool {
	since, had := v.goneSince[id]
	return had && v.inbound[id] == 0 && time.Since(since) > goneAfter
}

// takeReplaced connects to nodes that have taken the places of others. A table that comes again
// changes nothing.
func (v *Van) takeReplaced(nodes []pslite.Node) {
	for _, n := range nodes {
		v.mu.Lock()
		old := v.dealers[int(n.ID)] // nil: a node of this one's role
		replaced := n.IsRecovery && n.ID != v.self.ID && old != nil && old.address != address(n)
		if replaced {
			v.goneSince[int(n.ID)] = time.Now() // it has yet to connect
		}
		v.mu.Unlock()
		if replaced {
			v.config.Logger.Info("node replaced", "node", n.ID, "by", address(n))
			v.connect(n)
		}
	}
}

// awaitPeers blocks, on a node that has taken the place of another, until all nodes have connected to
// it. Before that they may not know of it, and send their answers where the other was.
func (v *Van) awaitPeers(ctx context.Context) error {
	for began := time.Now(); ; {
		var missing []int
		v.mu.Lock()
		for id := range v.dealers {
			if v.inbound[id] == 0 {
				missing = append(missing, id)
			}
		}
		v.mu.Unlock()
		switch {
		case len(missing) == 0:
			return nil
		case time.Since(began) > v.config.Patience:
			return fmt.Errorf("gave up after %v of waiting for connections of %s", v.config.Patience, v.describe(missing))
		case !sleep(ctx, reconnectEvery/10):
			return context.Cause(ctx)
		}
	}
}
