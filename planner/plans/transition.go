package plans

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
)

// A transition is a change of a run's epochs that takes effect once it is on disk. Until then
// nothing in memory changes and no proxy is sent anything, so a write that fails leaves the run as
// it was, and the caller can try again. The holder of a transition holds j.mu throughout.
type transition struct {
	// What to write ahead of the epoch that begins.
	entries []store.Entry
	// The epochs that end with it, each at most once.
	endings []ending
	// Whether later proposals are held.
	held bool
}

// An ending is the account of an epoch as it is after its end.
type ending struct {
	epoch *epoch
	info  *api.Epoch
}

// stray says which batches the store may have that memory does not, after a write that failed or
// was cut short by the planner's end: batches 0 to batches-1 of that epoch. The next write for the
// epoch's number overwrites or removes them; a later restart would otherwise take them for its own.
// Only one number is at risk at a time, since a number is reused until a write with it succeeds.
type stray struct {
	epoch   uint64
	batches int
}

// end adds the end of an epoch to a transition.
func (j *job) end(t *transition, e *epoch, as api.Epoch_State) error {
	if t.ends(e) {
		return nil
	}
	info := e.describe()
	info.State, info.EndedUnixNanos = as, j.service.opts.Now().UnixNano()
	entry, err := protoEntry(j.epochName(info.GetEpoch()), info)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	t.entries, t.endings = append(t.entries, entry), append(t.endings, ending{e, info})
	return nil
}

func (t *transition) ends(e *epoch) bool {
	return slices.ContainsFunc(t.endings, func(o ending) bool { return o.epoch == e })
}

// replace adds the removal of a proposal whose number the next one takes. Its entry goes first:
// without it its batches are nobody's.
func (j *job) replace(t *transition, old *epoch) {
	t.entries = append(t.entries, store.Entry{Name: j.epochName(old.info.GetEpoch())})
	t.entries = append(t.entries, j.movesGone(old)...)
}

// finish makes the endings of a transition take effect: open batches are cancelled, and the epochs
// have their final states. Proxies finish moves that have begun; Record accepts those whether or
// not their epoch is over.
func (j *job) finish(t *transition) {
	for _, x := range t.endings {
		for _, b := range x.epoch.told() {
			event := j.event()
			event.Event = &api.PlanEvent_Cancel{Cancel: &api.Cancel{Batch: b.GetBatch()}}
			j.service.tellOf(event, b.GetFrom())
		}
		// No further report on its batches will be accepted; info has the last ones.
		clear(x.epoch.reports)
		x.epoch.drop()
		x.epoch.info = x.info
		if j.moving == x.epoch {
			j.moving = nil
		}
	}
	j.held = t.held
}

// endNow ends an epoch in memory at once and returns the entries to write. It is for ends that must
// not wait for the store.
func (j *job) endNow(e *epoch, as api.Epoch_State) []store.Entry {
	t := &transition{held: j.held}
	if err := j.end(t, e, as); err != nil {
		j.service.opts.Log.Error("a plan's end is not written", "job", j.name, "run", j.run, "epoch", e.info.GetEpoch(), "error", err)
	}
	j.finish(t)
	return t.entries
}

// batchesOf groups moves, which must be ordered by From and To, into the batches of an epoch, and
// adds them to its account.
//
// Batch number i of epoch E is E<<24|i: a proxy's report names its epoch by that, and the moves of
// an epoch can be removed from the store without reading it.
func batchesOf(e *epoch, moves []plan.Move, restore bool) []*api.MoveBatch {
	var batches []*api.MoveBatch
	for i, m := range moves {
		last := len(batches) - 1
		if i == 0 || m.From != moves[i-1].From || m.To != moves[i-1].To || len(batches[last].GetFirst()) == batchRanges {
			batches = append(batches, &api.MoveBatch{
				Batch: e.info.GetEpoch()<<24 | uint64(len(batches)), Epoch: e.info.GetEpoch(), From: m.From, To: m.To, Restore: restore,
			})
			last++
		}
		b := batches[last]
		b.First, b.Last = append(b.GetFirst(), m.First), append(b.GetLast(), m.Last)
		e.info.Keys += m.Len()
		e.info.Ranges++
	}
	for _, b := range batches {
		if slices.Equal(b.GetFirst(), b.GetLast()) {
			b.Last = nil
		}
	}
	// Reports subtract from this.
	e.info.PendingKeys = e.info.GetKeys()
	e.batches = len(batches)
	return batches
}

// addEpoch writes a new epoch with its batches and appends it to the job's, all in one write with
// the rest of the transition. If begin is set it is carried out from then on, in place of the one
// that was. The oldest epochs are dropped to keep MaxEpochs.
func (j *job) addEpoch(ctx context.Context, t *transition, e *epoch, batches []*api.MoveBatch, begin bool) error {
	number := e.info.GetEpoch()
	t.entries = append(t.entries, j.straysGone(number, len(batches))...)
	for _, b := range batches {
		entry, err := protoEntry(j.moveName(b.GetBatch()), b)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		t.entries = append(t.entries, entry)
		e.wait(b)
	}
	dropped := 0
	for ; len(j.epochs)-dropped >= MaxEpochs && j.epochs[dropped] != j.moving; dropped++ {
		old := j.epochs[dropped]
		t.entries = append(t.entries, j.movesGone(old)...)
		t.entries = append(t.entries, store.Entry{Name: j.epochName(old.info.GetEpoch())})
	}
	if err := j.write(ctx, t, e, begin); err != nil {
		// The store may have any of the new batches.
		j.addStray(number, len(batches))
		return err
	}
	j.epochs = j.epochs[dropped:]
	// A replaced proposal is the last one and has the same number.
	if n := len(j.epochs); n > 0 && j.epochs[n-1].info.GetEpoch() == number {
		j.epochs = j.epochs[:n-1]
	}
	j.epochs = append(j.epochs, e)
	if begin {
		j.openMore(ctx)
	}
	return nil
}

// start carries out an epoch that was proposed, in place of the one that was being carried out.
// What that one has moved so far stays. The caller holds j.mu.
func (j *job) start(ctx context.Context, t *transition, e *epoch) error {
	if j.stray.epoch == e.info.GetEpoch() {
		// A failed write was to replace this proposal. Its batches are written again.
		t.entries = append(t.entries, j.straysGone(e.info.GetEpoch(), e.batches)...)
		for _, b := range e.unsent() {
			entry, err := protoEntry(j.moveName(b.GetBatch()), b)
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			t.entries = append(t.entries, entry)
		}
	}
	if err := j.write(ctx, t, e, true); err != nil {
		return err
	}
	j.openMore(ctx)
	return nil
}

// write writes a transition that ends with the epoch e, and makes it take effect. begin says that e
// is carried out from then on; the epoch that was is superseded.
//
// The head and the epoch come last: without its own entry, an epoch's moves are nobody's. MOVING is
// on disk before the first batch is sent. A planner that restarts in between would otherwise not
// know that proxies work on it.
func (j *job) write(ctx context.Context, t *transition, e *epoch, begin bool) error {
	info := e.describe()
	if begin {
		if j.moving != nil {
			if err := j.end(t, j.moving, api.Epoch_SUPERSEDED); err != nil {
				return err
			}
		}
		info.State, info.AppliedUnixNanos = api.Epoch_MOVING, j.service.opts.Now().UnixNano()
	}
	entry, err := protoEntry(j.epochName(info.GetEpoch()), info)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := j.service.writeEntries(ctx, append(t.entries, j.headEntry(t.held), entry)); err != nil {
		return unavailable(err)
	}
	if j.stray.epoch == info.GetEpoch() {
		j.stray = stray{}
	}
	j.finish(t)
	e.info = info
	if begin {
		j.moving = e
	}
	return nil
}

// unsent returns the batches that wait to be sent, in the order of their numbers.
func (e *epoch) unsent() []*api.MoveBatch {
	var all []*api.MoveBatch
	for _, list := range e.waiting {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *api.MoveBatch) int { return cmp.Compare(a.GetBatch(), b.GetBatch()) })
	return all
}

// addStray notes that the store may have batches of an epoch that memory does not have.
func (j *job) addStray(number uint64, batches int) {
	if j.stray.epoch == number {
		batches = max(batches, j.stray.batches)
	}
	j.stray = stray{number, batches}
}

// straysGone returns the removal of the stray batches of an epoch from number first on.
func (j *job) straysGone(number uint64, first int) []store.Entry {
	var entries []store.Entry
	if j.stray.epoch != number {
		return nil
	}
	for i := first; i < j.stray.batches; i++ {
		entries = append(entries, store.Entry{Name: j.moveName(number<<24 | uint64(i))})
	}
	return entries
}
