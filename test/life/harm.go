package life

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// A harm is what an event does to jobs that run meanwhile, as far as the documentation says
// that it may. Judging jobs by harms is what makes the life a test: a job that fails without
// one is a failure of the fleet.
type harm struct {
	what string
	from time.Time
	to   time.Time // the zero time while it lasts
	harmful
}

// harmful says in which ways a harm harms.
type harmful struct {
	// breaks: connections break, and what is under way on them is lost, as it is
	// where a connection between hosts breaks. A job without PS_RESEND, or one
	// whose nodes are still registering, may wait for it for ever.
	breaks bool
	// holds: what goes over some connections waits for the end.
	holds bool
	// forgets: where keys are may be lost, so that jobs with displaced keys are
	// stopped rather than given stale values.
	forgets bool
}

// afterwards is for how long after a harm its consequences may show.
const afterwards = 3 * time.Second

// harms are all harms that were done, in the order in which they began. Its methods may be
// called concurrently.
type harms struct {
	mu  sync.Mutex // guards all, and the ends of harms
	all []*harm
}

// begin notes a harm that lasts until end is called. It is called before the harm is done, so
// that no consequence comes first.
func (h *harms) begin(what string, how harmful) (end func()) {
	x := &harm{what: what, from: time.Now(), harmful: how}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, x)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		x.to = time.Now()
	}
}

// during returns the harms whose consequences may show between two times.
func (h *harms) during(from, to time.Time) (all []harm) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.all {
		if x.from.Before(to) && (x.to.IsZero() || x.to.Add(afterwards).After(from)) {
			all = append(all, *x)
		}
	}
	return all
}

// excused returns until when nothing need move that last moved at from: while something is
// held, and for as long again, which TCP may take to notice that it is over. A harm that came
// when something should have moved already is no excuse.
func (h *harms) excused(from time.Time) time.Time {
	now := time.Now()
	until := from
	for _, x := range h.during(from, now) { // in the order in which they began
		// A harm that begins within mayHang of the end of the one before extends the excuse.
		if !x.holds || x.from.After(until.Add(mayHang)) {
			continue
		}
		end := now
		if !x.to.IsZero() {
			end = x.to.Add(x.to.Sub(x.from))
		}
		if end.After(until) {
			until = end
		}
	}
	return until
}

// names lists harms for people.
func names(all []harm) string {
	var list []string
	for _, x := range all {
		list = append(list, x.what)
	}
	if len(list) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%d things: %s", len(list), strings.Join(list, "; "))
}
