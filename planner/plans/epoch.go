package plans

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
)

const (
	// batchRanges is how many ranges a move of a batch has.
	batchRanges = 2048
	// openRanges is how many ranges a server's proxy has at a time, but for one batch
	// that it always may: as many as are at work, and as many to go on with.
	// openBatches bounds the batches. Keys that are hashed go from each server to
	// all others, few of them between two.
	openRanges  = 2 * batchRanges
	openBatches = 64
	// openToAll is how many batches are open of a server where proxies watch that
	// hear of all servers' moves.
	openToAll = 2
	// heldBars is how many durations an epoch's distribution has.
	heldBars = 512
)

// An epoch is one plan and its progress.
//
// Invariant: busy are the open batches by server, in the order in which they were
// sent, and their ranges; waiting has no empty list, busy no entry without a batch.
type epoch struct {
	info    *api.Epoch
	batches int                        // how many moves there are in all, on disk too
	waiting map[int32][]*api.MoveBatch // not sent yet, by server that they are moved from
	open    map[uint64]*api.MoveBatch  // sent, not done, by number
	busy    map[int32]busy
	reports map[uint64]*api.MoveReport
}

// busy are the moves that the proxy of a server has been sent and has not finished.
type busy struct {
	ranges  int
	batches []*api.MoveBatch
}

func newEpoch(info *api.Epoch) *epoch {
	e := &epoch{info: info, reports: map[uint64]*api.MoveReport{}}
	e.drop()
	return e
}

// drop leaves out all that is waiting or open.
func (e *epoch) drop() {
	e.waiting, e.open, e.busy = map[int32][]*api.MoveBatch{}, map[uint64]*api.MoveBatch{}, map[int32]busy{}
}

// wait adds a batch that is to be sent.
func (e *epoch) wait(b *api.MoveBatch) { e.waiting[b.GetFrom()] = append(e.waiting[b.GetFrom()], b) }

// nextBatch takes out a batch that the proxy of a server may have now; nil: none. Bound
// of the open batches of a server.
func (e *epoch) nextBatch(from int32, most int) *api.MoveBatch {
	list, has := e.waiting[from], e.busy[from]
	if len(list) == 0 || len(has.batches) >= most || len(has.batches) > 0 && has.ranges+len(list[0].GetFirst()) > openRanges {
		return nil
	}
	b := list[0]
	if e.waiting[from] = list[1:]; len(list) == 1 {
		delete(e.waiting, from)
	}
	e.open[b.GetBatch()] = b
	e.busy[from] = busy{has.ranges + len(b.GetFirst()), append(has.batches, b)}
	return b
}

// close takes out a batch that is done.
func (e *epoch) close(b *api.MoveBatch) {
	delete(e.open, b.GetBatch())
	has := e.busy[b.GetFrom()]
	if len(has.batches) == 1 {
		delete(e.busy, b.GetFrom())
		return
	}
	at := slices.Index(has.batches, b)
	e.busy[b.GetFrom()] = busy{has.ranges - len(b.GetFirst()), slices.Delete(has.batches, at, at+1)}
}

// told returns the open batches, in their order.
func (e *epoch) told() []*api.MoveBatch {
	return slices.SortedFunc(maps.Values(e.open), func(a, b *api.MoveBatch) int { return cmp.Compare(a.GetBatch(), b.GetBatch()) })
}

// propose turns a proposal into an epoch. j.mu is held.
func (j *job) propose(ctx context.Context, p Proposal) (uint64, error) {
	// Where keys in parts are is the proxies' business.
	moves := slices.DeleteFunc(j.moves(p.Targets), func(m plan.Move) bool { return plan.PartsOf(m.From) > 0 })
	if len(moves) == 0 {
		return 0, nil
	}
	e := newEpoch(&api.Epoch{
		State: api.Epoch_PROPOSED, Strategy: j.service.opts.Strategy, Reason: p.Reason,
		MadeUnixNanos: j.service.opts.Now().UnixNano(), Hosts: p.Hosts,
		MigrationBytes: p.MigrationBytes, HorizonSteps: p.HorizonSteps,
	})
	var entries []store.Entry
	old := j.newest(api.Epoch_PROPOSED)
	if old != nil { // never applied: the new one takes its place
		entries = append(entries, j.movesGone(old)...)
		e.info.Epoch = old.info.GetEpoch()
	} else {
		e.info.Epoch = j.lastEpoch() + 1
	}
	if err := j.addEpoch(ctx, e, moves, false, entries); err != nil {
		return 0, err
	}
	if j.service.acts(j.name) && !j.held {
		return e.info.GetEpoch(), j.start(ctx, e)
	}
	return e.info.GetEpoch(), nil
}

// moves returns what must move so that the targets own the keys.
func (j *job) moves(targets []plan.Range) []plan.Move {
	var moves []plan.Move
	for _, t := range targets {
		for r := range j.owners.Resolved(t.Keys, j.servers) {
			if r.Owner != t.Owner {
				moves = append(moves, plan.Move{Keys: r.Keys, From: r.Owner, To: t.Owner})
			}
		}
	}
	slices.SortStableFunc(moves, func(a, b plan.Move) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return moves
}

// addEpoch writes an epoch with its moves, which are grouped by From and To, and
// keeps it.
func (j *job) addEpoch(ctx context.Context, e *epoch, moves []plan.Move, restore bool, entries []store.Entry) error {
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
	e.info.PendingKeys = e.info.GetKeys()
	e.batches = len(batches)
	for _, b := range batches {
		if slices.Equal(b.GetFirst(), b.GetLast()) {
			b.Last = nil
		}
		entry, err := protoEntry(j.moveName(b.GetBatch()), b)
		if err != nil {
			return err
		}
		entries = append(entries, entry)
		e.wait(b)
	}
	for len(j.epochs) >= MaxEpochs && j.epochs[0] != j.moving {
		entries = append(entries, j.movesGone(j.epochs[0])...)
		entries = append(entries, store.Entry{Name: j.epochName(j.epochs[0].info.GetEpoch())})
		j.epochs = j.epochs[1:]
	}
	// The epoch comes last: without it, its moves are nobody's.
	entry, err := j.epochEntry(e)
	if err != nil {
		return err
	}
	if err := j.service.writeEntries(ctx, append(entries, j.headEntry(), entry)); err != nil {
		return unavailable(err)
	}
	if n := len(j.epochs); n > 0 && j.epochs[n-1].info.GetEpoch() == e.info.GetEpoch() {
		j.epochs = j.epochs[:n-1]
	}
	j.epochs = append(j.epochs, e)
	return nil
}

// start carries an epoch out; one that is being carried out ends.
func (j *job) start(ctx context.Context, e *epoch) error {
	var entries []store.Entry
	if old := j.moving; old != nil {
		entries = append(entries, j.endEpoch(old, api.Epoch_SUPERSEDED)...)
	}
	e.info.State, e.info.AppliedUnixNanos = api.Epoch_MOVING, j.service.opts.Now().UnixNano()
	e.reports = map[uint64]*api.MoveReport{}
	entry, err := j.epochEntry(e)
	if err != nil {
		return err
	}
	if err := j.service.writeEntries(ctx, append(entries, j.headEntry(), entry)); err != nil {
		return unavailable(err)
	}
	j.moving = e
	j.openMore(ctx)
	return nil
}

// endEpoch stops the open batches of an epoch and returns the entries to write.
func (j *job) endEpoch(e *epoch, as api.Epoch_State) []store.Entry {
	for _, b := range e.told() {
		event := j.event()
		event.Event = &api.PlanEvent_Cancel{Cancel: &api.Cancel{Batch: b.GetBatch()}}
		j.service.tellOf(event, b.GetFrom())
		e.countBatch(b.GetBatch())
	}
	e.drop()
	e.info.State, e.info.EndedUnixNanos = as, j.service.opts.Now().UnixNano()
	if j.moving == e {
		j.moving = nil
	}
	entry, err := j.epochEntry(e)
	if err != nil {
		return nil
	}
	return []store.Entry{entry}
}

// openMore tells proxies to go on, as far as they may have more at a time, and
// ends the epoch when all is done.
func (j *job) openMore(ctx context.Context) {
	for _, from := range slices.Sorted(maps.Keys(j.moving.waiting)) {
		j.openOf(from)
	}
	j.endDone(ctx)
}

// openOf tells the proxy of one server to go on.
func (j *job) openOf(from int32) {
	most := openBatches
	if !j.service.routes(j.key()) {
		most = openToAll
	}
	for {
		b := j.moving.nextBatch(from, most)
		if b == nil {
			return
		}
		j.service.tellOf(j.moveEvent(b), from)
	}
}

// endDone ends the epoch that is being carried out where all is done.
func (j *job) endDone(ctx context.Context) {
	if e := j.moving; len(e.open)+len(e.waiting) == 0 {
		// What the disk does not take now is found again when it is read: all
		// keys are where they should be.
		_ = j.service.writeEntries(ctx, j.endEpoch(e, api.Epoch_DONE))
	}
}

// countBatch adds the report on a batch to the epoch for good.
func (e *epoch) countBatch(batch uint64) {
	if r := e.reports[batch]; r != nil {
		addReport(e.info, r)
		delete(e.reports, batch)
	}
}

// describe returns the epoch with the reports so far.
func (e *epoch) describe() *api.Epoch {
	info := proto.CloneOf(e.info)
	for _, r := range e.reports {
		addReport(info, r)
	}
	return info
}

func addReport(e *api.Epoch, r *api.MoveReport) {
	e.MovedKeys += r.GetMovedKeys()
	e.MovedBytes += r.GetMovedBytes()
	gone := r.GetMovedKeys()
	for _, refused := range r.GetRefused() {
		gone += refused.GetKeys()
		i := slices.IndexFunc(e.GetRefused(), func(o *api.Refusal) bool { return o.GetReason() == refused.GetReason() })
		switch {
		case i >= 0:
			e.Refused[i].Keys += refused.GetKeys()
		case len(e.GetRefused()) < maxReasons:
			e.Refused = append(e.Refused, proto.CloneOf(refused))
		}
	}
	e.PendingKeys -= min(e.GetPendingKeys(), gone)
	e.HeldMicros, e.HeldCount = mergeBars(e.GetHeldMicros(), e.GetHeldCount(), r.GetHeldMicros(), r.GetHeldCount())
}

// mergeBars adds two distributions of rising values. Where there are too many
// values, neighbours become one, with the higher value.
func mergeBars(v1, n1, v2, n2 []uint64) (values, counts []uint64) {
	n1, n2 = n1[:min(len(v1), len(n1))], n2[:min(len(v2), len(n2))]
	type bar struct{ value, count uint64 }
	var bars []bar
	for i, n := range n1 {
		bars = append(bars, bar{v1[i], n})
	}
	for i, n := range n2 {
		bars = append(bars, bar{v2[i], n})
	}
	slices.SortFunc(bars, func(a, b bar) int { return cmp.Compare(a.value, b.value) })
	for _, b := range bars {
		if last := len(values) - 1; last >= 0 && values[last] == b.value {
			counts[last] += b.count
			continue
		}
		values, counts = append(values, b.value), append(counts, b.count)
	}
	for len(values) > heldBars {
		n := 0
		for i := 0; i < len(values); i += 2 {
			values[n], counts[n] = values[min(i+1, len(values)-1)], counts[i]
			if i+1 < len(counts) {
				counts[n] += counts[i+1]
			}
			n++
		}
		values, counts = values[:n], counts[:n]
	}
	return values, counts
}

// measured notes what came of an epoch.
func (j *job) measured(ctx context.Context, number uint64, actual map[string]float64) error {
	e := j.epoch(number)
	if e == nil {
		return nil // forgotten meanwhile
	}
	for _, h := range e.info.GetHosts() {
		if bytes, ok := actual[h.GetHost()]; ok {
			h.Actual = bytes
		}
	}
	entry, err := j.epochEntry(e)
	if err != nil {
		return err
	}
	if err := j.service.writeEntries(ctx, []store.Entry{entry}); err != nil {
		return unavailable(err)
	}
	return nil
}
