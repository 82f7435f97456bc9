package jobs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

const (
	// Up to moveKeys keys move together as a group, and up to maxMoving groups at a time. Smaller
	// groups, as of keys that go to many servers, may be more: as many as have maxMoving*moveKeys
	// keys together, but no more than maxGroups. A small group takes about as long as a large one.
	moveKeys  = 2048
	maxMoving = 4
	maxGroups = 32
	// expireAfter is how long a move may take before it is given up. Requests for its keys wait
	// until then.
	expireAfter = 2 * time.Second
	// maxListed bounds the ranges that can be moved: keys of a range are listed one by one, since
	// it is not known which exist.
	maxListed = 1 << 20
	// maxTries is how often a group is tried that a site or a server keeps from moving.
	maxTries = 20
)

// movers has the moves that this host has to carry out. job.mu guards it, and all that it points
// to.
//
// Invariant: a key of a batch that is not done is in exactly one group of work or one attempt in
// progress.
type movers struct {
	handler     migrate.Handler      // see setHandler
	adding      adding               // follows it
	fetching    bool                 // the planner's table was asked for
	asking      bool                 // an answer may be taken from now on
	work        []*work              // groups of keys to move, in order
	batches     map[uint64]*progress // of the planner, by number; until they are reported as done
	underWay    map[uint64]*attempt  // attempts in progress, by the number of the site's batch
	moved       uint64               // keys
	movedBytes  uint64
	refusedKeys uint64
	held        durations
	recording   map[route.Batch]bool // batches for which a Record call is in progress
	unanswered  time.Time            // when a Record call last ended without an answer
	probe       *probe               // nil: the handler is known, or may not be tested
	notBefore   time.Time            // no move begins before
}

func newMovers() movers {
	return movers{batches: map[uint64]*progress{}, underWay: map[uint64]*attempt{}, recording: map[route.Batch]bool{}}
}

// work is a group of keys of one of the planner's batches that move together.
type work struct {
	plan     uint64 // the batch; 0: none of the planner's, see beginParts
	from, to int32
	keys     []uint64
	tries    int
	// lateSince is since when it has waited for a push of an earlier move; see [migrate.ErrLate].
	lateSince time.Time
	round     int // of beginParts: the attempt, see parting
}

// attempt is one move in progress.
type attempt struct {
	work  *work
	began time.Time
	since time.Time // when its present phase began
	phase migrate.Phase
	took  [migrate.Phases]uint64 // microseconds
}

// phases updates the times that attempts have spent in their phases. It is called after each
// change; the caller holds x.mu.
func (x *job) phases() {
	for number, a := range x.underWay {
		if p := x.site.Phase(number); p != a.phase {
			now := time.Now()
			a.took[a.phase] += uint64(now.Sub(a.since).Microseconds())
			a.phase, a.since = p, now
		}
	}
}

// moves reports whether this host is the one that carries out moves away from a server. That is the
// host of the server itself if it has a worker, and otherwise the job's first host with one, by
// name. All hosts come to the same answer from the same node table, without talking. A move needs a
// worker, in whose name the servers are asked.
func (x *job) moves(from int32) bool {
	// The answer depends on nothing but the node table, which all hosts of the run have alike, so
	// exactly one host carries out the moves away from a server.
	movers := x.workerHosts()
	if len(movers) == 0 {
		return false
	}
	// The host of the server saves the most: its proxy's pulls and pushes to that server stay on
	// the host.
	mover := slices.Min(movers)
	for _, n := range x.nodes.Nodes() {
		if n.ID == pslite.ServerID(int(from)) && slices.Contains(movers, siteName(n)) {
			mover = siteName(n)
		}
	}
	return slices.Contains(x.names(), mover)
}

// servedMoves returns the ranks of all servers for which moves reports true, ascending, never nil;
// the caller holds x.mu.
func (x *job) servedMoves() []int32 {
	ranks := []int32{}
	movers := map[string]bool{}
	first := ""
	for _, name := range x.workerHosts() {
		movers[name] = true
		if first == "" || name < first {
			first = name
		}
	}
	mine := x.names()
	for _, n := range x.nodes.Nodes() {
		role, rank, ok := pslite.Rank(n.ID)
		if !ok || role != pslite.Server || len(movers) == 0 {
			continue
		}
		mover := first
		if name := siteName(n); movers[name] {
			mover = name
		}
		if slices.Contains(mine, mover) {
			ranks = append(ranks, int32(rank))
		}
	}
	// Keys in parts have no single server, so the first host moves them.
	if slices.Contains(mine, first) && (x.jobs.opts.Parts != 0 || x.router.Table().Parted()) {
		for parts := 2; parts <= plan.MaxParts; parts++ {
			ranks = append(ranks, plan.Parted(parts)) // as moves encodes a key's owner that is no server
		}
	}
	slices.Sort(ranks)
	return ranks
}

// accept takes a batch of the planner, and divides it into groups; the caller holds x.mu. A batch
// that this host knows already, as after a new Watch, or that another host carries out, is ignored.
// Ranges too long to be listed are refused.
func (x *job) accept(b *api.MoveBatch) {
	if x.batches[b.GetBatch()] != nil || !x.moves(b.GetFrom()) {
		return
	}
	p := &progress{refused: map[string]*api.Refusal{}}
	x.batches[b.GetBatch()] = p
	var keys []uint64
	for i, first := range b.GetFirst() {
		last := first
		if i < len(b.GetLast()) {
			last = b.GetLast()[i]
		}
		// Each key would be listed, and its server asked for it; most of them need not exist.
		if last-first >= maxListed {
			p.refuse("range", fmt.Sprintf("a range of %d keys is not moved, because it is unknown which of them exist", last-first+1), last-first+1, first)
			continue
		}
		for k := first; ; k++ {
			keys = append(keys, k)
			if k == last {
				break
			}
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	p.pending = uint64(len(keys))
	for part := range slices.Chunk(keys, groupOf(b.GetFrom())) {
		x.work = append(x.work, &work{plan: b.GetBatch(), from: b.GetFrom(), to: b.GetTo(), keys: part})
	}
	p.changed = true
}

// cancel ends a batch: groups that have not begun are dropped. Attempts in progress are carried to
// their end.
func (x *job) cancel(batch uint64) {
	x.work = slices.DeleteFunc(x.work, func(w *work) bool { return w.plan == batch })
	if p := x.batches[batch]; p != nil {
		p.pending, p.changed = 0, true
	}
}

// cancelUnlisted cancels the batches that a Watch, which has listed everything, has not told. Their
// Cancel came while this host was not watching, or from a planner that was killed before it.
func (x *job) cancelUnlisted(watch int) {
	for number, p := range x.batches {
		if p.watch != watch {
			x.cancel(number)
		}
	}
}

// beginMoves begins as many of the groups as may move now; the caller holds x.mu. Groups that can
// never move are refused, which the planner learns by the next report; others wait in work.
func (x *job) beginMoves() {
	// Nothing begins that could not be recorded now: the keys would be held until the planner is
	// back.
	if !x.connected() || !x.router.Ready() || x.lostStore != "" || time.Now().Before(x.notBefore) || x.jobs.plans == nil || !x.jobs.plans.connected() {
		return
	}
	// mayAsk and known ask other hosts and refuse work that cannot move, so they are only called
	// while there is work.
	if len(x.work) == 0 || !x.mayAsk(time.Now()) || !x.known(time.Now()) {
		return
	}
	for n := 0; n < len(x.work) && x.mayMove(len(x.work[n].keys)); {
		w := x.work[n]
		if x.run == "" {
			x.work = slices.Delete(x.work, n, n+1)
			x.refuse(w, "run", "the run of the job is unknown: the scheduler's host needs a proxy of this version with a writable state directory", len(w.keys))
			continue
		}
		// The handler of such a job is not found out, so this comes first.
		if err := x.router.Unfit(); staysFor(err) != "" {
			x.work = slices.Delete(x.work, n, n+1)
			x.stay(w, err)
			continue
		}
		if !x.settleHandler() {
			return
		}
		if x.handler != migrate.Adds && x.handler != migrate.Assigns {
			x.work = slices.Delete(x.work, n, n+1)
			x.refuse(w, "handler", "the servers' handler is "+x.handler.String()+": keys can be placed before a run (--placement), but not moved; if pushes are added or assigned, set --handler", len(w.keys))
			continue
		}
		// Of several groups one may have to wait, for a key that is moving, and those behind it
		// need not.
		err := x.beginMove(w)
		switch {
		case err == nil:
			x.work = slices.Delete(x.work, n, n+1)
		case staysFor(err) != "":
			x.work = slices.Delete(x.work, n, n+1)
			x.stay(w, err)
		case errors.Is(err, migrate.ErrLate) && w.waitsTooLong(time.Now()):
			x.work = slices.Delete(x.work, n, n+1)
			x.refuse(w, "busy", err.Error(), len(w.keys))
		default:
			x.jobs.log.Debug("move postponed", "job", x.name, "error", err)
			n++ // later
		}
	}
}

// waitsTooLong reports whether a group that has to wait for a late push has done so for as long as
// all its tries could take.
func (w *work) waitsTooLong(now time.Time) bool {
	if w.lateSince.IsZero() {
		w.lateSince = now
	}
	return now.Sub(w.lateSince) >= maxTries*w.expires()
}

// mayMove reports whether a group of that many keys may move beside those that are moving.
func (x *job) mayMove(keys int) bool {
	if groups := x.site.Moving(); groups < maxMoving || groups >= maxGroups {
		return groups < maxMoving
	}
	for _, a := range x.underWay {
		keys += len(a.work.keys)
	}
	return keys <= maxMoving*moveKeys
}

// beginMove begins the move of those of a group's keys that belong to their old owner; the others
// have been moved already.
func (x *job) beginMove(w *work) error {
	table := x.router.Table()
	var left []uint64
	for _, k := range w.keys {
		if table.Owner(k) == w.from {
			left = append(left, k)
		}
	}
	if p := x.batches[w.plan]; p != nil && len(left) < len(w.keys) {
		p.pending -= min(p.pending, uint64(len(w.keys)-len(left))) // they have moved already
		p.changed = true
	}
	if w.keys = left; len(left) == 0 {
		return nil
	}
	if x.seen.store == "" {
		return errors.New("the planner has not reported its store ID")
	}
	x.router.MoveApp(x.router.AppOf())
	// On disk before the first key moves: see job.displaced.
	if err := x.mayBeDisplaced(); err != nil {
		x.cannotMove(err)
		return err
	}
	if err := x.site.Begin(migrate.Move{Plan: w.plan, From: w.from, To: w.to, Keys: left, Handler: x.handler}); err != nil {
		return err
	}
	now := time.Now()
	x.underWay[x.site.Last()] = &attempt{work: w, began: now, since: now}
	return nil
}

// expire gives up the attempts that take too long.
func (x *job) expire(now time.Time) {
	for number, a := range x.underWay {
		if now.Sub(a.began) > a.work.expires() {
			x.site.Expire(route.Batch{Mover: x.site.Name(), Number: number})
		}
	}
}

// result handles the outcome of a move; the caller holds x.mu. A move that failed for a passing
// reason goes back to work, up to maxTries times.
func (x *job) result(r *migrate.Result) {
	delete(x.recording, r.Batch)
	x.jobs.log.Debug("move completed", "job", x.name, "batch", r.Batch, "from", r.Move.From, "to", r.Move.To, "keys", r.Move.Keys, "error", r.Err)
	a := x.underWay[r.Batch.Number]
	if a == nil {
		return
	}
	delete(x.underWay, r.Batch.Number)
	if a.work.plan == 0 {
		x.partResult(a.work, r, time.Since(a.began))
		return
	}
	micros := uint64(time.Since(a.began).Microseconds())
	p := x.batches[a.work.plan]
	var unfit *migrate.ValueError
	switch n := uint64(len(r.Move.Keys)); {
	case r.Err == nil:
		x.moved += n
		x.movedBytes += r.Bytes
		x.held.addMove(micros, &a.took)
		if p != nil {
			p.moved, p.bytes, p.pending, p.changed = p.moved+n, p.bytes+r.Bytes, p.pending-min(p.pending, n), true
			p.micros = append(p.micros, micros)
			if p.pending == 0 {
				x.jobs.plans.batchDone()
			}
		}
	case errors.Is(r.Err, errOver):
		x.refuse(a.work, "ended", r.Err.Error(), len(r.Move.Keys))
	case errors.Is(r.Err, migrate.ErrHandler):
		x.refuse(a.work, "handler", r.Err.Error(), len(r.Move.Keys))
	case staysFor(r.Err) != "":
		x.stay(a.work, r.Err)
	case errors.As(r.Err, &unfit):
		x.refuseSome(a.work, unfit.Keys, "value", r.Err.Error())
	default:
		x.jobs.log.Info("move abandoned", "job", x.name, "keys", n, "from", r.Move.From, "to", r.Move.To, "error", r.Err)
		switch a.work.tries++; {
		case p == nil || p.pending == 0: // the batch was canceled meanwhile, or the store is lost
			return
		case errors.Is(r.Err, migrate.ErrPast) && a.work.tries >= pastTries:
			x.refuse(a.work, "past", r.Err.Error(), len(r.Move.Keys))
			return
		case a.work.tries >= maxTries:
			x.refuse(a.work, "busy", r.Err.Error(), len(r.Move.Keys))
			return
		}
		// It goes to the end, so that a group which fails again and again does not hold up the
		// others. The pause lets the requests through that have waited for the keys.
		x.work = append(x.work, a.work)
		x.notBefore = time.Now().Add(100 * time.Millisecond)
		if errors.Is(r.Err, migrate.ErrPast) {
			x.notBefore = time.Now().Add(pastPause << (a.work.tries - 1))
		}
	}
	if len(x.work) > 0 && time.Now().After(x.notBefore) {
		x.beginMoves()
	}
}
