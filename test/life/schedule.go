package life

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// quiet is how long before the end of a life nothing is begun any more, so that the fleet is
// well again at the end.
const quiet = 10 * time.Second

// A lane is a sequence of events. Each begins at its time, or when the one before is over.
// Events of different lanes happen at the same time.
type lane struct {
	name   string
	events []timed
}

// A timed is an event at a time since the beginning.
type timed struct {
	at time.Duration
	event
}

// lanes returns what happens in a life, from its seed and whether it has upgrades. Each lane
// has randomness of its own, so that a change of one leaves the others as they were.
func lanes(seed uint64, span time.Duration, upgraded bool) []lane {
	return []lane{
		{"services", drawLane(rand.New(rand.NewPCG(seed, 1)), span, 2*time.Second, 9*time.Second, toServices(upgraded))},
		{"surroundings", drawLane(rand.New(rand.NewPCG(seed, 2)), span, 4*time.Second, 12*time.Second, always(toSurroundings))},
		{"orders", drawLane(rand.New(rand.NewPCG(seed, 3)), span, 3*time.Second, 9*time.Second, always(toPlanner))},
	}
}

// season is how long times last in which services only end in order, and in turn times in which
// anything may happen to them. In the former nothing is lost that a job without PS_RESEND would
// miss.
const season = 45 * time.Second

// gentle reports whether a time is one of the former.
func gentle(at time.Duration) bool { return at/season%2 == 0 }

// always returns the same choices at any time.
func always(of []choice) func(time.Duration) []choice {
	return func(time.Duration) []choice { return of }
}

// drawLane draws events until the end of span, with pauses between least and most, from what
// may happen at each time. A longer span has the same events at its beginning.
func drawLane(r *rand.Rand, span, least, most time.Duration, of func(at time.Duration) []choice) (all []timed) {
	for at := between(r, least, most); at < span-quiet; at += between(r, least, most) {
		now, total := of(at), 0
		for _, c := range now {
			total += c.weight
		}
		n := r.IntN(total)
		for _, c := range now {
			if n -= c.weight; n < 0 {
				all = append(all, timed{at, c.draw(r)})
				break
			}
		}
	}
	return all
}

// between draws a duration of at least least and less than most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// play makes the events of a lane happen, until shortly before the end.
func (l *Life) play(ctx context.Context, events lane, end time.Time) {
	began := end.Add(-l.config.For)
	for _, e := range events.events {
		if !pause(ctx, time.Until(began.Add(e.at))) || time.Until(end) < quiet/2 {
			return
		}
		if slices.Contains(l.config.Without, e.kind()) || len(l.config.Only) > 0 && !slices.Contains(l.config.Only, e.kind()) {
			continue
		}
		if err := e.possible(l); err != nil {
			l.journal.say("skipped: %v: %v", e.event, err)
			continue
		}
		l.journal.say("%v", e.event)
		l.ledger.event(e.kind())
		if err := e.happen(ctx, l); err != nil && ctx.Err() == nil {
			l.journal.fail("%v: %v", e.event, err)
		}
	}
}
