package plans

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// A restore or a rollback is done when its keys are where they shall be and none of them can leave.
// A list of moves that is made at its beginning does not ensure that: proxies complete the moves
// that had begun before, and record them while the command is carried out. So when all batches are
// done the moves are computed again, from the owners of then. When there are none left the command
// ends, and from then on Record refuses what would displace a key, until a plan is applied. Keys
// that proxies have refused to move are tried again.

const (
	// retryAfter is how long a batch is put off that has left keys behind.
	retryAfter = 2 * time.Second
	// tendEvery is the period of Tend.
	tendEvery = time.Second
	// maxWaits bounds the servers of which an account says that keys have to leave them.
	maxWaits = 64
)

// commanded reports whether the epoch is a restore or a rollback.
func (e *epoch) commanded() bool { return e.info.GetRestores() || e.rollsBack() }

// homes returns all displaced keys with their homes.
func (j *job) homes() (targets []plan.Range) {
	for r := range j.owners.All() {
		targets = slices.AppendSeq(targets, plan.Homes(r.Keys, j.servers))
	}
	return targets
}

// takenBack returns the keys that an epoch has moved and that are still there, with their former
// owners. The moves are read back from the store, which keeps them for this.
func (j *job) takenBack(ctx context.Context, number uint64) (targets []plan.Range, err error) {
	batches, err := j.readMoves(ctx, number)
	if err != nil {
		return nil, err
	}
	for _, b := range batches {
		keys, err := keysOf(b.GetFirst(), b.GetLast())
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		for _, k := range keys {
			for r := range j.owners.Resolved(k, j.servers) {
				// Of a plan that is still being carried out only some keys have arrived.
				if r.Owner == b.GetTo() {
					targets = append(targets, plan.Range{Keys: r.Keys, Owner: b.GetFrom()})
				}
			}
		}
	}
	return targets, nil
}

// fulfilled reports whether a command is done, none of whose batches is open or waits. If keys have
// been displaced since its batches were made, it gets further ones. If the store fails it is not
// done, and Tend tries again.
func (j *job) fulfilled(ctx context.Context, e *epoch) bool {
	if err := j.settle(ctx); err != nil {
		return false
	}
	targets := j.homes()
	if e.rollsBack() {
		var err error
		if targets, err = j.takenBack(ctx, e.info.GetRollsBack()); err != nil {
			return false
		}
	}
	if moves := e.without(j.moves(targets)); len(moves) > 0 {
		if err := j.extend(ctx, e, moves); err != nil {
			j.service.opts.Log.Warn("keys that were moved meanwhile are not yet moved back", "job", j.name, "run", j.run, "epoch", e.info.GetEpoch(), "error", err)
		}
		return false
	}
	return len(e.putOff) == 0
}

// without returns the moves that no batch which is put off has.
func (e *epoch) without(moves []plan.Move) []plan.Move {
	if len(e.putOff) == 0 {
		return moves
	}
	var has plan.Owners // by destination; at home are those that are not put off
	for _, b := range e.putOff {
		keys, _ := keysOf(b.GetFirst(), b.GetLast()) // checked before
		for _, k := range keys {
			has.Set(plan.Range{Keys: k, Owner: b.GetTo()})
		}
	}
	var left []plan.Move
	for _, m := range moves {
		for r := range has.Within(m.Keys) {
			if r.Owner != m.To {
				left = append(left, plan.Move{Keys: r.Keys, From: m.From, To: m.To})
			}
		}
	}
	return left
}

// extend adds batches to an epoch that is being carried out, and opens them. Those that a failed
// write leaves in the store are harmless: they are moves of the same command.
func (j *job) extend(ctx context.Context, e *epoch, moves []plan.Move) error {
	info := proto.CloneOf(e.info)
	batches := batchesOf(info, e.batches, moves)
	var t transition
	if err := j.addBatches(&t, batches); err != nil {
		return err
	}
	entry, err := protoEntry(j.epochName(info.GetEpoch()), info)
	if err != nil {
		return err
	}
	if err := j.write(ctx, append(t.entries, entry)); err != nil {
		e.maybe = max(e.maybe, e.batches+len(batches))
		return err
	}
	e.info, e.kept, e.batches = info, entry.Value, e.batches+len(batches)
	for _, b := range batches {
		e.wait(b)
	}
	for _, from := range slices.Sorted(maps.Keys(e.waiting)) {
		j.openOf(from)
	}
	return nil
}

// putOff puts a batch off that is done and has left keys behind. Its refusals are shown until it is
// tried again.
func (j *job) putOff(e *epoch, b *api.MoveBatch) {
	if len(e.putOff) == 0 {
		e.again = j.service.opts.Now().Add(retryAfter)
	}
	e.putOff = append(e.putOff, b)
	r := e.reports[b.GetBatch()]
	moved := proto.CloneOf(r)
	moved.Refused = nil
	addReport(e.info, moved)
	e.reports[b.GetBatch()] = &api.MoveReport{Host: r.GetHost(), Refused: r.GetRefused()}
}

// Tend tries again what keeps restores and rollbacks from being done, until ctx ends.
func (s *Service) Tend(ctx context.Context) {
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.retry(ctx)
		}
	}
}

// retry is one round of Tend.
func (s *Service) retry(ctx context.Context) {
	for _, j := range s.allRuns() {
		j.mu.Lock()
		if e := j.moving; e != nil && e.commanded() {
			j.retry(ctx, e)
		}
		j.mu.Unlock()
	}
}

// retry has the batches wait again that were put off long enough ago, and ends the command if it is
// done. The caller holds j.mu.
func (j *job) retry(ctx context.Context, e *epoch) {
	if len(e.putOff) > 0 && j.service.opts.Now().Before(e.again) {
		return
	}
	all := e.putOff
	e.putOff = nil
	for _, b := range all {
		if delete(e.reports, b.GetBatch()); j.pending(b) {
			e.wait(b)
		}
	}
	j.openMore(ctx)
}

// waits returns the servers that keys of the command that is being carried out still have to leave.
// The caller holds j.mu.
func (j *job) waits() (all []*api.Wait) {
	e := j.moving
	if e == nil || !e.commanded() {
		return nil
	}
	by := map[int32]*api.Wait{}
	for _, b := range slices.Concat(e.told(), e.putOff) {
		left := j.left(b)
		if len(left) == 0 {
			continue
		}
		w := by[b.GetFrom()]
		if w == nil {
			w = &api.Wait{Server: b.GetFrom(), Example: left[0].First, Hosts: j.service.movers(j.key(), b.GetFrom())}
			by[b.GetFrom()] = w
		}
		for _, k := range left {
			w.Keys += k.Len()
		}
	}
	all = slices.SortedFunc(maps.Values(by), func(a, b *api.Wait) int { return cmp.Compare(a.GetServer(), b.GetServer()) })
	return all[:min(len(all), maxWaits)]
}

// movers returns the hosts that are sent the moves of keys of a run away from a server.
func (s *Service) movers(k runKey, from int32) (hosts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.audienceOf(k).whoMoves(from) {
		if hosts = append(hosts, w.host); len(hosts) == maxWaits {
			break
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
