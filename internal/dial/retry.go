// Package dial connects to peers over the network.
//
// A [Pause] spaces out attempts to reach a peer that does not answer, so that thousands of
// hosts do not return to it at the same moment. [Connect] runs sessions with such pauses;
// agents and proxies reach the planner by it.
//
// [MarkingDialer] and [MarkGRPC] mark the sockets of psidecar's own connections, so that
// interception leaves them alone: an agent or a proxy may run in a cgroup whose connects are
// redirected.
package dial

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Pause is the time between attempts. The first is random, between half of First and First.
// Later ones are random between half of First and a span that grows fourfold with each attempt,
// up to Most. Processes that lost a peer at the same moment thus soon retry at different ones.
// It is not safe for concurrent use.
type Pause struct {
	First, Most time.Duration

	span time.Duration // of the next pause; 0: First
}

// PausePlanner returns the pause for processes that lost the planner. When it is back, all of
// them are connected within 5 s plus the time that it takes to accept them.
func PausePlanner(first time.Duration) *Pause { return &Pause{First: first, Most: 5 * time.Second} }

// Reset makes the next pause a first one, because the peer has answered.
func (p *Pause) Reset() { p.span = 0 }

// Next returns how long to wait.
func (p *Pause) Next() time.Duration {
	span := max(p.span, p.First)
	p.span = min(4*span, max(p.Most, p.First))
	return p.First/2 + rand.N(span-p.First/2+1)
}

// Wait waits for a pause, or until ctx ends, in which case it returns its error.
func (p *Pause) Wait(ctx context.Context) error {
	timer := time.NewTimer(p.Next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
