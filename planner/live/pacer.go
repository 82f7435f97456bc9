package live

import "time"

// Where workers turn to other keys it is decided gather after the last of them has
// told, but no later than gatherMost after the first; where that has to wait for keys
// that are moving, it is tried again in retry.
const (
	gather     = 150 * time.Millisecond
	gatherMost = 450 * time.Millisecond
	retry      = 100 * time.Millisecond
)

// One part in rest of the time may be spent on such decisions, saved up to burst: when
// many workers turn at once, the first ones are decided at once, and those that reported
// late soon after, however long that takes in a large job.
const (
	rest  = 2
	burst = 2 * time.Second
)

// A pacer says when it is decided for workers that turn to other keys.
type pacer struct {
	first time.Time     // when the first of them reported; zero: all are decided
	left  time.Duration // that may be spent
	at    time.Time     // when left was that
}

func newPacer(now time.Time) *pacer { return &pacer{left: burst, at: now} }

// told returns how long to wait when a worker has reported.
func (p *pacer) told(now time.Time) time.Duration {
	if p.first.IsZero() {
		p.first = now
	}
	return max(min(gather, p.first.Add(gatherMost).Sub(now)), 0)
}

// wait returns for how long nothing may be decided.
func (p *pacer) wait(now time.Time) time.Duration {
	p.save(now)
	return max(-p.left*rest, 0)
}

// decided notes a decision that took so long.
func (p *pacer) decided(now time.Time, took time.Duration) {
	p.save(now)
	p.left -= took
	p.first = time.Time{}
}

func (p *pacer) save(now time.Time) {
	p.left = min(p.left+now.Sub(p.at)/rest, burst)
	p.at = now
}
