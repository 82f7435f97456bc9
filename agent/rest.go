// This file has the rests: where messages alone, without their keys, cost more than --cpu-budget,
// the capture programs look at busy streams for a part of the time only.
//
// A cycle of [restCycle] begins with a watch and ends with a rest. Cycles follow the wall clock, so
// that all hosts of a job watch at the same time, and a shorter watch lies in a longer one. Bytes
// that pass in a rest are counted exactly, when the next message of their stream is seen; requests,
// steps and uses of keys are estimates then. Connections with the scheduler and those with few
// messages never rest: what they say, and whether nodes wait for each other, is always seen.

package agent

import (
	"context"
	"time"

	"github.com/psidecar/psidecar/bpf"
)

const (
	// restCycle is shorter than quietAfter, so that a rest is never taken for silence.
	restCycle = 1600 * time.Millisecond
	// A stream may rest from restFrom messages a second on, until they are fewer than half of that.
	restFrom = 50
)

// rest alternates between watching and resting until ctx ends.
func (a *Agent) rest(ctx context.Context) error {
	wait := func(until time.Time) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(until)):
			return nil
		}
	}
	// On a busy host it wakes late. What was watched too long is made up for in the next cycles, so
	// that what was seen is the part of all that it is taken for.
	var excess time.Duration
	of, before := uint32(1), uint32(1)
	for {
		began := time.Now()
		end := began.Truncate(restCycle).Add(restCycle)
		if of > 1 {
			watch := restCycle / time.Duration(of)
			if err := wait(began.Add(max(watch-excess, watch/8))); err != nil {
				return err
			}
			if err := a.capture.Rest(true); err != nil {
				return err
			}
			excess += time.Since(began) - watch
		}
		rests := a.now().UnixNano()
		if err := wait(end); err != nil {
			return err
		}
		before, of = of, max(a.restOf.Load(), 1)
		if before == 1 && of == 1 {
			excess = 0
			continue
		}
		// Before it ends, so that no request of the next watch is forgotten.
		a.observer.EndRest(rests)
		a.mu.Lock()
		resting := a.resting
		a.mu.Unlock()
		a.observer.SetRest(a.now().UnixNano(), of, func(id bpf.StreamID) bool { return resting[id.Egress()].rests })
		if err := a.capture.Rest(false); err != nil {
			return err
		}
	}
}

// busyness is how many messages pass on a stream.
type busyness struct {
	since     time.Time
	messages  uint64
	perSecond float64 // moving average
	rests     bool    // it may rest
}

// at returns the busyness at a time by which so many messages were seen, each of which stands for
// of if the stream rests.
func (b busyness) at(now time.Time, messages uint64, of uint32) busyness {
	seconds := now.Sub(b.since).Seconds()
	n := busyness{since: now, messages: messages, perSecond: b.perSecond, rests: b.rests}
	if b.since.IsZero() || seconds <= 0 {
		return n
	}
	rate := float64(messages-min(b.messages, messages)) / seconds
	if b.rests {
		rate *= float64(of)
	}
	n.perSecond += (rate - b.perSecond) / 4
	n.rests = n.perSecond >= restFrom || b.rests && n.perSecond >= restFrom/2
	return n
}
