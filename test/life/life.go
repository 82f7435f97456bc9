// Package life runs a fleet as it is lived in, for as long as asked: a planner with a store,
// four hosts with an agent and a proxy each, jobs of all kinds that come and go at the same
// addresses in the same cgroups, and all that happens to such a fleet meanwhile. Processes are
// killed, stopped, replaced and upgraded, links cut, disks filled, clocks set, state files
// damaged, the planner's store lost, plans and rules changed. Nothing is ever reset in between.
//
// Its input is a [Config]. What happens follows from the seed alone, when exactly from the
// machine too. Its output is a line for each thing that happened and a summary. A wrong value,
// a job that hangs without a cause that is documented, a process that ends by itself and
// anything left over at the end is a failure. It needs root and a kernel with BPF.
//
// Three lanes of events and three slots of jobs go on at a time, each in a goroutine. They
// share the ledger of counts, the journal, and the harms, by which jobs are judged: an event
// says what it may do to jobs, and a job that failed is excused only by such a harm at the
// right time.
//
//   - event.go and the files beside it: what can happen, one type each
//   - schedule.go: what happens when, from the seed
//   - kinds.go, run.go, verdict.go: jobs, and what may become of them
//   - fleet.go, service.go: what runs on the hosts
//   - rest.go: what may be left at the end
package life

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config says how to live.
type Config struct {
	For  time.Duration
	Seed uint64 // of all that is drawn
	// Late is how long after that time jobs may go on that have not ended yet; 0 means
	// until they do. Those that would go on are ended, and counted.
	Late time.Duration
	// Failures is after how many the life ends; 0 means 1.
	Failures int
	// Without are kinds of events that are left out, to look for what causes a
	// failure.
	Without []string
	// Upgrades has hosts upgraded, and left without psidecar for a while, too.
	Upgrades bool
	// Sums has proxies sum pushes, and the workers of some jobs run on one host.
	Sums bool
	// Only are the kinds that may happen; empty: all.
	Only []string
}

// Life is a fleet that lives. It is made by [Live].
type Life struct {
	t       testing.TB
	config  Config
	journal *journal
	fleet   *fleet
	ledger  *ledger
	harms   *harms
	patience
	data  data
	bases references
	ports [slots]slotState

	end        time.Time              // of the time to live; set before jobs begin
	replaced   time.Time              // when a proxy was, by the lane of services
	full       [hostCount]atomic.Bool // disks without room
	background sync.WaitGroup         // what goes on beside later events
}

// Live lives for the time of the config and fails the test if something went wrong. It blocks
// for that time, and some minutes more for the beginning and the end.
func Live(t testing.TB, config Config) {
	t.Helper()
	l := &Life{t: t, config: config, harms: new(harms)}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	l.journal = newJournal(t, config, cancel)
	l.ledger = newLedger()
	var sums []string
	if config.Sums {
		sums = []string{"--aggregate", "host", "--aggregate-wait", "5ms", "--share-least", "512"}
	}
	l.fleet = newFleet(t, l.journal, &l.patience, sums...)
	l.data = makeData(t, l.fleet.programs.psjob, l.journal.dir)
	l.bases.programs = l.fleet.programs
	defer l.journal.keepFiles(l)
	l.journal.say("life of %v with seed %d", config.For, config.Seed)
	l.live(ctx)
	l.journal.say("%s", l.ledger.summary())
}

// live is all of it: a calm beginning, the time of the config, and a calm end, at which the
// fleet must hold no more than at the beginning.
func (l *Life) live(ctx context.Context) {
	watching, unwatch := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer unwatch()
	watchers.Go(func() { l.patience.watch(watching, l.t, l.fleet.net.Cgroup()) })
	if err := l.fleet.await(ctx, l.fleet.allReady); err != nil {
		l.journal.fail("the fleet does not begin: %v", err)
		return
	}
	watchers.Go(func() { l.watchMemory(watching) })
	watchers.Go(func() { l.watchMoves(watching) })
	watchers.Go(func() { l.watchAdopted(watching) })
	l.calm(ctx, "before")
	// After the first jobs, since what is kept for them by name is no leak.
	var before rest
	if err := l.fleet.await(ctx, func() (err error) { before, err = l.fleet.rest(ctx); return err }); err != nil {
		l.journal.fail("before: %v", err)
		return
	}
	l.end = time.Now().Add(l.config.For)
	var all errgroup.Group
	for slot := range slots {
		all.Go(func() error { l.runJobs(ctx, slot); return nil })
	}
	for _, lane := range lanes(l.config.Seed, l.config.For, l.config.Upgrades) {
		all.Go(func() error { l.play(ctx, lane, l.end); return nil })
	}
	all.Wait()
	l.background.Wait()
	if ctx.Err() != nil {
		return
	}
	if err := l.fleet.await(ctx, l.fleet.allReady); err != nil {
		l.journal.fail("the fleet is not well at the end: %v", err)
		return
	}
	l.calm(ctx, "after")
	// In a short life perhaps no job has several workers on a host.
	if ctx.Err() == nil && l.config.Sums && l.config.For >= 10*time.Minute && l.ledger.totalSums() == 0 {
		l.journal.fail("no push was summed")
	}
	if ctx.Err() == nil {
		if err := l.fleet.awaitRest(ctx, before, l.ledger.events[damage{}.kind()]); err != nil {
			l.journal.fail("at the end: %v", err)
			l.fleet.dump()
		}
		l.fleet.stop(l.journal)
	}
}

// calm runs a job of each name in each slot, with IPv6 and IPv4 addresses, while nothing else
// happens: it must end well. After the first time, what is kept of a job by its name is kept of
// all.
func (l *Life) calm(ctx context.Context, when string) {
	for _, six := range []bool{true, false} {
		var all errgroup.Group
		for slot := range slots {
			all.Go(func() error {
				s := calmJob(slot)
				s.ipv6 = six
				s.name = fmt.Sprintf("%s, %s, IPv6 %v", s.name, when, six)
				l.runJob(ctx, slot, s, time.Time{})
				return nil
			})
		}
		all.Wait()
	}
}
