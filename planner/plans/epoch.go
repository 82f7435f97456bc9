package plans

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

const (
	// batchRanges is how many ranges a batch has at most. A batch is one event and one entry of the
	// store, so it must stay well below store.MaxValue.
	batchRanges = 2048
	// openRanges is how many ranges a server's proxy has open at a time, one batch always included:
	// one batch to work on and one to continue with, so that it need not wait for the planner.
	// openBatches bounds the number of batches. Hashed keys move from each server to all others, a
	// few between any two, so their batches are small and many.
	openRanges  = 2 * batchRanges
	openBatches = 64
	// openToAll replaces openBatches while some watcher receives the moves of all servers: then
	// every open batch is sent to every such proxy.
	openToAll = 2
	// heldBars is how many distinct durations an epoch's distribution of hold times has.
	heldBars = 512
)

// An epoch is one plan and its progress. Its fields are guarded by the mutex of its job.
//
// A batch goes from waiting to open when it is sent, and leaves open when its proxy reports that it
// is done. A batch of a command that has left keys behind is put off, and later waits again.
// reports has the latest report of each open batch; they are sums, so a newer one replaces an older
// one, and the last is added to info for good. Of a batch that is put off it has the refusals.
//
// Invariants: open and busy have the same batches, busy by source server in the order of sending;
// waiting has no empty list, busy no entry without a batch. An epoch that is neither PROPOSED nor
// MOVING has no batches here; the store keeps them for a rollback.
type epoch struct {
	// The account of the plan, as stored. It includes the reports of finished batches.
	info *api.Epoch
	// Its entry in the store, or what is to be written next (repair).
	kept []byte
	// The number of batches that were written, which is the number to remove from the store.
	batches int
	// The number of batches that the store may have after a failed write, if it is larger.
	maybe int
	// Batches that were not sent yet, by source server.
	waiting map[int32][]*api.MoveBatch
	// Batches that were sent and are not done, by number.
	open    map[uint64]*api.MoveBatch
	busy    map[int32]busy
	putOff  []*api.MoveBatch
	again   time.Time // when those that are put off are tried again
	reports map[uint64]*api.MoveReport
}

// busy are the open batches of one source server, in order of sending, and the number of their
// ranges.
type busy struct {
	ranges  int
	batches []*api.MoveBatch
}

func newEpoch(info *api.Epoch) *epoch {
	e := &epoch{info: info, reports: map[uint64]*api.MoveReport{}}
	e.drop()
	return e
}

// drop forgets all batches.
func (e *epoch) drop() {
	e.waiting, e.open, e.busy, e.putOff = map[int32][]*api.MoveBatch{}, map[uint64]*api.MoveBatch{}, map[int32]busy{}, nil
}

// wait adds a batch to those that are to be sent.
func (e *epoch) wait(b *api.MoveBatch) { e.waiting[b.GetFrom()] = append(e.waiting[b.GetFrom()], b) }

// nextBatch moves a batch of a source server from waiting to open and returns it, or nil if its
// proxy has enough to do. most is the bound on open batches of that server. A server without an
// open batch always gets one, however large.
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

// close removes a batch that is done from the open ones.
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

// told returns the open batches by number, which is the order in which they were opened for each
// source server.
func (e *epoch) told() []*api.MoveBatch {
	return slices.SortedFunc(maps.Values(e.open), func(a, b *api.MoveBatch) int { return cmp.Compare(a.GetBatch(), b.GetBatch()) })
}

// propose turns a proposal into an epoch, and carries it out at once if plans are carried out
// unasked. The caller holds j.mu and has called check.
func (j *job) propose(ctx context.Context, p Proposal) (uint64, error) {
	// Plans do not move keys in parts: the proxies place their parts by themselves (see
	// plan.Parted).
	moves := slices.DeleteFunc(j.moves(p.Targets), func(m plan.Move) bool { return plan.PartsOf(m.From) > 0 })
	if len(moves) == 0 {
		return 0, nil
	}
	e := newEpoch(&api.Epoch{
		Epoch: j.lastEpoch() + 1, State: api.Epoch_PROPOSED, Strategy: j.service.opts.Strategy, Reason: p.Reason,
		MadeUnixNanos: j.service.opts.Now().UnixNano(), Hosts: p.Hosts,
		MigrationBytes: p.MigrationBytes, HorizonSteps: p.HorizonSteps,
	})
	// A proposal that nobody has applied was made for older traffic. Its number does not come again:
	// an operator who was shown one plan must not apply another.
	old := j.newest(api.Epoch_PROPOSED)
	if err := j.addEpoch(ctx, &transition{held: j.held}, e, moves, j.service.acts(j.name) && !j.held, old); err != nil {
		return 0, err
	}
	return e.info.GetEpoch(), nil
}

// moves returns the moves that bring the targets to their owners, grouped by source and
// destination. Within a group moves keep the order of the targets.
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

// openMore opens batches of all source servers, as many as each may have, and ends the epoch if
// nothing is left. The caller holds j.mu, and j.moving is not nil.
func (j *job) openMore(ctx context.Context) {
	for _, from := range slices.Sorted(maps.Keys(j.moving.waiting)) {
		j.openOf(from)
	}
	j.endDone(ctx)
}

// openOf opens batches of one source server and sends them to the proxy that moves its keys.
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

// endDone ends the epoch that is being carried out if all its batches are done and, of a command,
// all its keys are where they shall be. It must be called after openOf, which may have opened the
// last batches.
func (j *job) endDone(ctx context.Context) {
	e := j.moving
	if len(e.open)+len(e.waiting) > 0 || e.commanded() && !j.fulfilled(ctx, e) {
		return
	}
	j.endNow(e, api.Epoch_DONE)
	// If it fails the end is written with the next change, before which a restart finds all keys
	// where they should be and ends the epoch then.
	_ = j.write(ctx, nil)
}

// countBatch adds the latest report on a batch to the account for good.
func (e *epoch) countBatch(batch uint64) {
	if r := e.reports[batch]; r != nil {
		addReport(e.info, r)
		delete(e.reports, batch)
	}
}

// describe returns a copy of the account that includes the reports on open batches.
func (e *epoch) describe() *api.Epoch {
	info := proto.CloneOf(e.info)
	for _, r := range e.reports {
		addReport(info, r)
	}
	return info
}

// addReport adds a report to an account. Refusals are counted by reason, the first maxReasons of
// them. Keys that moved and keys that were refused are both no longer pending.
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
	// A proxy can report more keys than the batch has if keys came back in between; a count never
	// wraps.
	e.PendingKeys -= min(e.GetPendingKeys(), gone)
	e.HeldMicros, e.HeldCount = mergeBars(e.GetHeldMicros(), e.GetHeldCount(), r.GetHeldMicros(), r.GetHeldCount())
}

// mergeBars adds two distributions, given as ascending values and their counts. If the sum has more
// than heldBars values, pairs of neighbours are merged at the higher value, so that quantiles are
// never reported too low.
func mergeBars(v1, n1, v2, n2 []uint64) (values, counts []uint64) {
	// Proxies send these; lengths may differ.
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

// measured stores the bytes that hosts have moved since an epoch was carried out. The caller holds
// j.mu.
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
	if err := j.write(ctx, []store.Entry{entry}); err != nil {
		return unavailable(err)
	}
	e.kept = entry.Value
	return nil
}
