package live

import "time"

// When workers turn to other keys, a decision follows gather after the last report of it, by which
// time most of them have reported, but at most gatherMost after the first. If a plan is still being
// carried out, it is tried again every retry.
const (
	gather     = 150 * time.Millisecond
	gatherMost = 450 * time.Millisecond
	retry      = 100 * time.Millisecond
)

// One part in rest of the time may be spent on such decisions. Unspent time is saved, up to burst:
// if many workers turn at once, those that report first and those that report late both get their
// decision soon, although one takes long in a large job.
const (
	rest  = 2
	burst = 2 * time.Second
)

// A pacer times the decisions for workers that turn to other keys.
type pacer struct {
	// When the first worker reported that no decision has been made for; zero if there is none.
	first time.Time
	// The time that may be spent, as of at.
	left time.Duration
	at   time.Time
}

func newPacer(now time.Time) *pacer { return &pacer{left: burst, at: now} }

// told returns how long to wait with the decision when a worker has reported that it turned.
func (p *pacer) told(now time.Time) time.Duration {
	if p.first.IsZero() {
		p.first = now
	}
	return max(min(gather, p.first.Add(gatherMost).Sub(now)), 0)
}

// wait returns how long no decision may be made.
func (p *pacer) wait(now time.Time) time.Duration {
	p.save(now)
	return max(-p.left*rest, 0)
}

// decided notes a decision that took that long.
func (p *pacer) decided(now time.Time, took time.Duration) {
	p.save(now)
	p.left -= took
	p.first = time.Time{}
}

// save adds what may be spent of the time since the last call.
func (p *pacer) save(now time.Time) {
	p.left = min(p.left+now.Sub(p.at)/rest, burst)
	p.at = now
}
