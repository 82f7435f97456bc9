package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxEvents bounds the events that are kept of a job.
const maxEvents = 100

// An Event is a moment from which on something about a job was different.
type Event struct {
	At   time.Time `json:"at"`
	What string    `json:"what"` // threshold 0.99 on, stalled
}

// Seen is what events are made of: what a job is like at a moment.
type Seen struct {
	Stalled bool
	// On has the settings of the measures that hold, by name: "threshold" is "0.99". Nil: not
	// known now.
	On map[string]string
}

// See notes what has changed of a job since it was seen last. When it is seen for the first
// time nothing has.
func (l *Log) See(job string, at time.Time, now Seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.jobs[job]; !known {
		return // events are dropped with points
	}
	if l.seen == nil {
		l.seen, l.events = map[string]Seen{}, map[string][]Event{}
	}
	before, known := l.seen[job]
	if now.On == nil {
		now.On = before.On
	}
	l.seen[job] = now
	if !known {
		return
	}
	for _, what := range changes(before, now) {
		l.events[job] = append(l.events[job], Event{at, what})
	}
	kept := slices.DeleteFunc(slices.Clone(l.events[job]), func(e Event) bool { return at.Sub(e.At) > Kept })
	l.events[job] = slices.Delete(kept, 0, max(len(kept)-maxEvents, 0))
}

// changes are the differences between two moments, as texts.
func changes(before, now Seen) (texts []string) {
	switch {
	case now.Stalled && !before.Stalled:
		texts = append(texts, "stalled")
	case before.Stalled && !now.Stalled:
		texts = append(texts, "goes on")
	}
	if before.On == nil {
		return texts
	}
	for measure, setting := range now.On {
		if was, on := before.On[measure]; !on || was != setting {
			texts = append(texts, strings.Join(strings.Fields(fmt.Sprintf("%s %s on", measure, setting)), " "))
		}
	}
	for measure := range before.On {
		if _, on := now.On[measure]; !on {
			texts = append(texts, measure+" off")
		}
	}
	slices.Sort(texts)
	return texts
}

// Events returns those of a job, the oldest first.
func (l *Log) Events(job string) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events[job])
}
