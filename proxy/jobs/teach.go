package jobs

import (
	"context"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/route"
)

// seen is what this host last knew of the planner's store, for one run. It is written to disk
// before a key of the run may move. A store that does not reach it has lost something, and does not
// know where keys are.
type seen struct {
	store   string // its id; empty: no key has moved
	version uint64
}

// see takes note of the planner's store and its version; the caller holds x.mu. A store with
// another id replaces the one before only if that is among stores, those that it continues.
// Versions only grow.
func (x *job) see(store string, version uint64, stores []string) {
	switch {
	case store == "":
		return
	// As long as no key has moved any store will do.
	case !x.displaced && store != x.seen.store: // whichever it is, no key has moved by another one
		x.seen = seen{store, version}
	case store == x.seen.store:
		x.seen.version = max(x.seen.version, version)
	// The store continues the one that was seen before, as after a restore that was taught.
	case x.seen.store == "" || slices.Contains(stores, x.seen.store):
		x.seen = seen{store, max(version, x.seen.version)}
	default:
		return
	}
	if x.journal != nil {
		x.journal.saw(x.seen.store, x.seen.version)
	}
}

// trusts reports whether a store has everything that this host has seen; the caller holds x.mu.
func (x *job) trusts(c *copied) bool {
	return !x.displaced || x.seen.store == "" || slices.Contains(c.stores, x.seen.store) && c.version >= x.seen.version
}

// running describes the run for the planner; the caller holds x.mu.
func (x *job) running() *api.Running {
	r := &api.Running{Job: x.name, Run: string(x.run), Servers: uint32(x.servers), Used: x.used}
	if x.displaced {
		r.Store, r.Version = x.seen.store, x.seen.version
	}
	x.toldMoves = x.servedMoves()
	r.Routed, r.Moves = true, x.toldMoves
	return r
}

// storeLost is called when the planner's store does not know the owners of the run's keys. It
// starts teaching the store. Plans that were accepted are dropped: the store knows nothing of them.
func (x *job) storeLost(e *api.Lost) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lostStore == "" {
		x.jobs.log.Error("the planner's store does not know where keys of a job are; keys stay where they are, and this host teaches the store. If a proxy was replaced in the meantime, requests wait until the store has learned",
			"job", x.name, "run", x.run, "store", e.GetStore(), "seen_store", x.seen.store, "seen_version", x.seen.version, "waits", !x.router.Ready())
	}
	x.lostStore = e.GetMessage()
	x.work = nil // the store knows nothing of these plans, and counts its own from the start
	clear(x.batches)
	if x.teaching {
		return
	}
	x.teaching = x.jobs.start(func(ctx context.Context) {
		defer func() {
			x.mu.Lock()
			x.teaching = false
			x.mu.Unlock()
		}()
		x.teach(ctx)
	})
}

// teachAgain is the pause between two attempts to teach the store.
const teachAgain = time.Second

// teach sends the planner what this host knows, until the store has learned. The store needs the
// lessons of all hosts with workers: only together do they prove where keys are.
func (x *job) teach(ctx context.Context) {
	for told := ""; ctx.Err() == nil; {
		x.mu.Lock()
		wanted := x.lostStore != "" && !x.gone
		// Collected anew for each attempt: keys may have been released meanwhile.
		lessons := x.lessons()
		x.mu.Unlock()
		if !wanted {
			return
		}
		if len(lessons) > 0 {
			taught, err := x.jobs.plans.teach(ctx, lessons)
			if err == nil && taught.GetDone() {
				return // a snapshot follows
			}
			if text := errorText(err) + x.lostStore; text != told {
				told = text
				x.jobs.log.Warn("the planner's store has not yet learned where keys of a job are", "job", x.name, "waits_for", taught.GetWaitsFor(), "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(teachAgain):
		}
	}
}

// errorText returns an error's text, and "" for none.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// teach sends lessons over a stream of their own, and returns the planner's answer.
func (p *plans) teach(ctx context.Context, lessons []*api.Lesson) (*api.Taught, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := p.planner().Teach(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range lessons {
		if err := stream.Send(l); err != nil {
			break // CloseAndRecv says why
		}
	}
	return stream.CloseAndRecv()
}

// lessonRanges is the number of ranges in one message of a lesson, which keeps it below gRPC's
// limit of 4 MiB.
const lessonRanges = 8192

// lessons returns what this host knows of the owners of keys, in pieces; the caller holds x.mu. It
// returns none where the host does not know, as while it joins without a journal. A host without
// workers of the run receives no letters about moves, so what it does not know proves nothing.
func (x *job) lessons() (all []*api.Lesson) {
	var table *route.Table
	held := map[route.Batch][]plan.Keys{}
	switch {
	case !x.hasWorker():
		return nil
	case x.journal != nil:
		table, held = x.journal.table, x.journal.held
	case x.site == nil || !x.router.Ready():
		return nil
	default:
		table = x.router.Table()
		for _, b := range x.router.Holds() {
			held[b] = x.router.Held(b)
		}
	}
	names := x.names()
	next := &api.Lesson{
		Job: x.name, Run: string(x.run), Servers: uint32(x.servers), Store: x.seen.store, Version: x.seen.version,
		Sites: names, AllSites: append(slices.Clone(names), x.otherNames()...), Displaced: &api.Displaced{}, Held: &api.Displaced{},
		Host: x.jobs.opts.Host,
	}
	// A lesson has a message for each lessonRanges entries; only the first one says of which run it
	// is.
	flush := func(most int) {
		if n := max(len(next.GetDisplaced().GetFirst()), len(next.GetHeld().GetFirst())); n > most {
			all = append(all, next)
			next = &api.Lesson{Host: x.jobs.opts.Host, Displaced: &api.Displaced{}, Held: &api.Displaced{}}
		}
	}
	table.All(func(r plan.Range) bool {
		d := next.GetDisplaced()
		d.First, d.Last, d.Owner = append(d.First, r.First), append(d.Last, r.Last), append(d.Owner, r.Owner)
		flush(lessonRanges)
		return true
	})
	for _, keys := range held {
		for _, k := range keys {
			d := next.GetHeld()
			d.First, d.Last = append(d.First, k.First), append(d.Last, k.Last)
			flush(lessonRanges)
		}
	}
	flush(-1)
	return all
}

// keepJournal begins the journal with what the router knows; the caller holds x.mu.
func (x *job) keepJournal() {
	held := map[route.Batch][]plan.Keys{}
	for _, b := range x.router.Holds() {
		held[b] = x.router.Held(b)
	}
	var done []route.Batch
	if old := x.journal; old != nil {
		// Batches that are done stay so: a hold of one that is still in the router is an echo.
		done = old.done
		for _, b := range done {
			delete(held, b)
		}
		if err := old.close(); err != nil {
			x.jobs.log.Warn("closing a journal", "job", x.name, "error", err)
		}
	}
	var err error
	if x.journal, err = beginJournal(x.dir, x.router.Table().Clone(), held, done, x.seen.store, x.seen.version); err != nil {
		x.journal = nil
		x.router.Keep(nil)
		x.jobs.log.Warn("cannot save the journal: after a restart, this host could not teach a lost planner store where keys are", "job", x.name, "error", err)
		return
	}
	x.router.Keep(x.journal)
}

// takeJournal opens the journal of another proxy of this host, if there is one; the caller holds
// x.mu.
func (x *job) takeJournal() {
	j, err := openJournal(x.dir, x.servers)
	if err != nil {
		x.jobs.log.Warn("cannot read the journal: this host cannot teach a lost planner store where keys are", "job", x.name, "error", err)
		return
	}
	if j == nil {
		return
	}
	x.journal = j
	x.router.Keep(j)
	x.see(j.store, j.version, []string{x.seen.store})
}
