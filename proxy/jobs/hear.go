package jobs

import (
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// maxHeld bounds the ranges of keys of a job that are held, as other hosts ask. It is far above
// what they need: each moves at most maxMoving*moveKeys keys at a time.
const maxHeld = 4 << 20

// hear handles a letter of another site: it drops those of other runs and of unknown hosts, makes
// sure that what the letter starts would survive a kill, and hands the message to the site. What
// is dropped is counted.
func (x *job) hear(l *letter) {
	routed := false
	x.locked(func() error {
		routed = true
		// Letters of the previous run may arrive late. Acted upon, they would hold keys that nobody
		// releases.
		if l.run != x.run || x.run == "" {
			x.strangers++
			x.jobs.countRefused(claimRun) // no fault of anybody's: one run ends, another begins
			return nil
		}
		why := x.declines(l)
		if why != "" {
			x.jobs.letters.count(why, 1)
			return nil
		}
		x.jobs.log.Debug("letter received", "job", x.name, "from", l.from, "kind", l.message.Kind, "batch", l.message.Batch, "keys", l.message.Keys, "owner", l.message.Owner, "held", len(l.message.Held))
		x.site.Receive(l.from, l.message)
		return nil
	})
	if !routed {
		x.jobs.letters.count(letterJob, 1)
	}
}

// declines returns why a letter of the job's run must not reach the site, empty: it may, and what
// it starts is on disk; the caller holds x.mu.
func (x *job) declines(l *letter) loss {
	// A letter between hosts that the node table does not have is of a table that this host has
	// not seen, or forged.
	if !slices.Contains(x.otherNames(), l.from) || !slices.Contains(x.names(), l.to) {
		return letterHost
	}
	if x.failed != nil { // it does not know what it has held
		return letterState
	}
	if l.message.App == untold {
		// It cannot make keys move, but what it holds, or moves itself, counts.
		if l.message.Kind == migrate.Quiet {
			return letterVersions
		}
		l.message.App = pslite.Empty
	} else if tellsApp(l.message.Kind) {
		x.heard[l.from] = true
	}
	x.see(l.store, l.version, nil)
	if !x.ownsIn(&l.message) {
		return letterOwner
	}
	if !holds(&l.message) {
		return ""
	}
	// A hold that is not answered makes its mover give the move up. A site that joins and does not
	// take the holds of another goes on asking, and lets no request pass meanwhile.
	if x.holdsWith(&l.message) > maxHeld {
		return letterHolds
	}
	x.router.MoveApp(l.message.App)
	// From the first hold on keys may be displaced, and that must be on disk before this host
	// answers that it is quiet: the mover relies on the hold.
	if err := x.mayBeDisplaced(); err != nil {
		x.cannotMove(err)
		return letterState
	}
	x.router.SetCarried(x.carried() == nil)
	return ""
}

// ownsIn reports whether the owner that a message names is one of this job. Another version may know
// owners that this one would look for in the wrong places.
func (x *job) ownsIn(m *migrate.Message) bool {
	switch m.Kind {
	case migrate.Hold:
		return m.Owner == 0 || plan.Owns(m.Owner, x.servers)
	case migrate.Release:
		return m.Owner == route.Unchanged || plan.Owns(m.Owner, x.servers)
	}
	return true
}

// holds reports whether a message may have this host hold keys.
func holds(m *migrate.Message) bool {
	return m.Kind == migrate.Hold || m.Kind == migrate.Holding && len(m.Held) > 0
}

// holdsWith returns how many ranges of keys are held once the message is taken; the caller holds
// x.mu. A batch counts as one more, so that one without keys takes room as well.
func (x *job) holdsWith(m *migrate.Message) (n int) {
	size := func(keys []plan.Keys) int { return 1 + len(keys) }
	for _, b := range x.router.Holds() {
		n += size(x.router.Held(b))
	}
	if m.Kind == migrate.Hold && x.router.Held(m.Batch) == nil {
		n += size(m.Keys)
	}
	// Only an answer to a site that joins, which has no batch of its own, is taken.
	if m.Kind == migrate.Holding && m.Batch.Mover == "" {
		for _, h := range m.Held {
			if x.router.Held(h.Batch) == nil {
				n += size(h.Keys)
			}
		}
	}
	return n
}
