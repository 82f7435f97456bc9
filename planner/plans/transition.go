package plans

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// A transition is a change of a run's epochs that takes effect once it is on disk. Until then
// nothing in memory changes and no proxy is sent anything, so a write that fails leaves the run as
// it was, and the caller can try again. The holder of a transition holds j.mu throughout.
type transition struct {
	// What to write ahead of the epoch that begins, and what to remove once that is written.
	entries, gone []store.Entry
	// The epochs that end with it, each at most once.
	endings []ending
	// Whether later proposals are held.
	held bool
}

// An ending is the account of an epoch as it is after its end.
type ending struct {
	epoch *epoch
	info  *api.Epoch
	kept  []byte // info as it is written
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
	t.entries, t.endings = append(t.entries, entry), append(t.endings, ending{e, info, entry.Value})
	return nil
}

func (t *transition) ends(e *epoch) bool {
	return slices.ContainsFunc(t.endings, func(o ending) bool { return o.epoch == e })
}

// removeEpoch adds the removal of an epoch. Its entry goes first: without it its batches are nobody's.
func (j *job) removeEpoch(t *transition, e *epoch) {
	t.gone = append(t.gone, store.Entry{Name: j.epochName(e.info.GetEpoch())})
	t.gone = append(t.gone, j.movesGone(e)...)
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
		x.epoch.info, x.epoch.kept = x.info, x.kept
		if j.moving == x.epoch {
			j.moving = nil
		}
	}
	j.held = t.held
}

// endNow ends an epoch in memory at once. It is for ends that must not wait for the store: the next
// write writes this one too.
func (j *job) endNow(e *epoch, as api.Epoch_State) {
	t := &transition{held: j.held}
	if err := j.end(t, e, as); err != nil {
		j.service.opts.Log.Error("a plan's end is not written", "job", j.name, "run", j.run, "epoch", e.info.GetEpoch(), "error", err)
	}
	j.finish(t)
	j.torn = true
}

// batchesOf groups moves, which must be ordered by From and To, into further batches of an epoch,
// and adds them to its account. first is the number of batches that it has.
//
// Batch number i of epoch E is E<<24|i: a proxy's report names its epoch by that, and the moves of
// an epoch can be removed from the store without reading it.
func batchesOf(info *api.Epoch, first int, moves []plan.Move) []*api.MoveBatch {
	var batches []*api.MoveBatch
	for i, m := range moves {
		last := len(batches) - 1
		if i == 0 || m.From != moves[i-1].From || m.To != moves[i-1].To || len(batches[last].GetFirst()) == batchRanges {
			batches = append(batches, &api.MoveBatch{
				Batch: info.GetEpoch()<<24 | uint64(first+len(batches)), Epoch: info.GetEpoch(), From: m.From, To: m.To, Restore: info.GetRestores(),
			})
			last++
		}
		b := batches[last]
		b.First, b.Last = append(b.GetFirst(), m.First), append(b.GetLast(), m.Last)
		info.Keys += m.Len()
		info.PendingKeys += m.Len() // reports subtract from this
		info.Ranges++
	}
	for _, b := range batches {
		if slices.Equal(b.GetFirst(), b.GetLast()) {
			b.Last = nil
		}
	}
	return batches
}

// addBatches adds batches of an epoch to a transition.
func (j *job) addBatches(t *transition, batches []*api.MoveBatch) error {
	for _, b := range batches {
		entry, err := protoEntry(j.moveName(b.GetBatch()), b)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		t.entries = append(t.entries, entry)
	}
	return nil
}

// addEpoch writes a new epoch with its batches and appends it to the job's, all in one write with
// the rest of the transition. If begin is set it is carried out from then on, in place of the one
// that was. replaced, if not nil, is a proposal that it replaces. The oldest epochs are dropped to
// keep MaxEpochs.
func (j *job) addEpoch(ctx context.Context, t *transition, e *epoch, moves []plan.Move, begin bool, replaced *epoch) error {
	number := e.info.GetEpoch()
	batches := batchesOf(e.info, 0, moves)
	e.batches = len(batches)
	t.entries = append(t.entries, j.straysGone(number, len(batches))...)
	if err := j.addBatches(t, batches); err != nil {
		return err
	}
	for _, b := range batches {
		e.wait(b)
	}
	var left []*epoch
	for i, old := range j.epochs {
		if old == replaced || len(j.epochs)-i >= MaxEpochs && len(left) == 0 && old != j.moving {
			j.removeEpoch(t, old)
		} else {
			left = append(left, old)
		}
	}
	if err := j.commit(ctx, t, e, begin); err != nil {
		// The store may have any of the new batches.
		j.addStray(number, len(batches))
		return err
	}
	j.epochs = append(left, e)
	if begin {
		j.openMore(ctx)
	}
	return nil
}

// start carries out an epoch that was proposed, in place of the one that was being carried out.
// What that one has moved so far stays. The caller holds j.mu.
func (j *job) start(ctx context.Context, t *transition, e *epoch) error {
	if err := j.commit(ctx, t, e, true); err != nil {
		return err
	}
	j.openMore(ctx)
	return nil
}

// commit writes a transition that ends with the epoch e, and makes it take effect. begin says that e
// is carried out from then on; the epoch that was is superseded.
//
// The head and the epoch come last: without its own entry, an epoch's moves are nobody's. MOVING is on disk before the first batch is sent. A
// planner that restarts in between would otherwise not know that proxies work on it.
func (j *job) commit(ctx context.Context, t *transition, e *epoch, begin bool) error {
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
	if err := j.write(ctx, append(t.entries, j.headEntry(t.held), entry)); err != nil {
		return unavailable(err)
	}
	if j.stray.epoch == info.GetEpoch() {
		j.stray = stray{}
	}
	j.finish(t)
	e.info, e.kept = info, entry.Value
	if begin {
		j.moving = e
	}
	// An epoch that stays although it was replaced has no effect, not even after a restart.
	_ = j.write(ctx, t.gone)
	return nil
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
