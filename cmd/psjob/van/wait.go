package van

import (
	"context"
	"fmt"
	"time"
)

// wait blocks until done is closed or has an element, at most as long as patience, or
// without a bound if that is 0. It logs from time to time what it waits for: what is
// called for that at the moment, since the nodes that are missing change. Whatever
// ends the van ends it.
func (v *Van) wait(ctx context.Context, done <-chan struct{}, patience time.Duration, what func() string) error {
	select {
	case <-done:
		return nil
	default:
	}
	began := time.Now()
	progress := time.NewTicker(v.config.ProgressEvery)
	defer progress.Stop()
	var tooLong <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		tooLong = timer.C
	}
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what(), context.Cause(ctx))
		case <-v.ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what(), context.Cause(v.ctx))
		case <-progress.C:
			if patience > 0 || v.config.Verbose > 0 {
				v.config.Logger.Warn("still waiting", "for", what(), "seconds", int(time.Since(began).Seconds()))
			}
		case <-tooLong:
			return fmt.Errorf("gave up after %v of waiting for %s", patience, what())
		}
	}
}

// watchConnections ends the van when a node that should be connected to this one has
// not been for too long: it must have died, and the job would wait for it forever.
// Before the node is ready only its own connections can be watched: nobody else knows
// it yet. The scheduler replaces a dead worker if another is there.
func (v *Van) watchConnections(ctx context.Context) error {
	var began time.Time // since all were known
	for sleep(ctx, min(time.Second, v.config.LostAfter/4)) {
		// At a job's end nodes vanish one after the other, and that is as it should
		// be.
		if v.stopping.Load() {
			continue
		}
		if v.roster != nil {
			if err := v.replaceDead(ctx); err != nil {
				return err
			}
		}
		ready := v.isReady.Load() // once: it may change at any moment
		if ready && began.IsZero() {
			began = time.Now()
		}
		v.mu.Lock()
		lost, away := 0, time.Duration(0)
		for id, d := range v.dealers {
			since := began
			if at, ok := v.goneSince[id]; ok {
				since = at
			}
			gone := v.inbound[id] == 0
			if !ready { // nobody knows this node yet but by its own connection
				at := d.lostAt.Load()
				gone, since = at != 0, time.Unix(0, at)
			}
			// One is enough to end the job, and to be named.
			if gone && time.Since(since) > v.config.LostAfter {
				lost, away = id, time.Since(since)
			}
		}
		v.mu.Unlock()
		if lost != 0 {
			return fmt.Errorf("%s has had no connection with this node for %v: it must have died", v.describe([]int{lost}), away.Round(time.Millisecond))
		}
	}
	return nil
}
