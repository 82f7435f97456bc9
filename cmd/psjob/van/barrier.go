package van

import (
	"context"
	"fmt"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Barrier blocks until all nodes of a group have come to it, at most as long as the
// van's patience. A node may wait at one barrier at a time: what opens it does not
// say which it is. Every node of the group has to come exactly once, also those with
// nothing to wait for.
func (v *Van) Barrier(ctx context.Context, group int) error {
	return v.barrierWithin(ctx, group, v.config.Patience)
}

// AwaitEnd blocks at a barrier of all nodes for as long as the job takes: it ends
// when all nodes have come, or with the van.
func (v *Van) AwaitEnd(ctx context.Context) error {
	return v.barrierWithin(ctx, Everyone, 0)
}

// barrierWithin asks the scheduler to be let go, and waits. The scheduler itself asks
// by a message, too, over the connection that every node has to itself: so it is
// counted like any other.
func (v *Van) barrierWithin(ctx context.Context, group int, patience time.Duration) error {
	// As in PS-lite: a group of one has nobody to wait for, and the scheduler is not
	// asked.
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
