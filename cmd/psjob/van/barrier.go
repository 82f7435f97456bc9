package van

import (
	"context"
	"fmt"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
)

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
