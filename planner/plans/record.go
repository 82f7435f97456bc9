package plans

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// A commit is one call of Record that waits to be written.
type commit struct {
	request *api.RecordRequest
	keys    []plan.Keys
	// woken receives exactly one value: true if the commit is done, with err and version set, or
	// false if this caller now has the duty to write the queue. It has room for one, so that the
	// writer never blocks on a caller.
	woken   chan bool
	version uint64
	err     error
	// The owners before, as ranks, in order. revert restores them if the write fails.
	undo []plan.Range
}

// After a write the run rests for restEach per proxy that receives the change. Records that arrive
// meanwhile are written and sent as one change. Notifying a thousand proxies takes some ten
// milliseconds of processor time, whatever the size of the change, so that a run takes at most a
// twenty-fifth of a core for it. With at most restFrom proxies it does not matter, and no Record is
// delayed.
const (
	restEach = 250 * time.Microsecond
	restFrom = 32
)

// Record implements api.PlansServer. It returns when the new owners are on disk.
//
// Calls are committed in groups. The first caller to find nobody writing becomes the writer;
// callers that arrive while it waits for the disk only queue their commits. When the writer is done
// it passes the duty to one of those, which writes all that have queued since. So the number of
// writes in flight is one, and the size of the next adapts to the disk.
//
// The move has happened when Record is called: both servers have the value, and the proxies hold
// the key's requests. If the answer is lost, the proxy calls again with the same arguments;
// recording what is recorded already succeeds.
func (s *Service) Record(ctx context.Context, r *api.RecordRequest) (*api.Recorded, error) {
	j, err := s.findRun(r.GetJob(), r.GetRun())
	if err != nil && r.GetRun() != "" {
		// A store that is gone may have recorded it; that cannot be known here.
		return nil, status.Errorf(codes.Unavailable, "job %s: nothing is known here of its run %s yet", r.GetJob(), r.GetRun())
	}
	if err != nil {
		return nil, err
	}
	if err := s.carries(r.GetHost(), j.key()); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error()) // it may be about to watch
	}
	keys, err := keysOf(r.GetFirst(), r.GetLast())
	switch {
	case err != nil:
		return nil, status.Errorf(codes.InvalidArgument, "recording for job %s: %v", j.name, err)
	case len(keys) > MaxRecord:
		return nil, status.Errorf(codes.InvalidArgument, "recording %d ranges of job %s: at most %d at a time", len(keys), j.name, MaxRecord)
	}
	// The proxy may be the first to notice that this store is an old copy. If so, apply refuses the
	// commit.
	j.checkSeen(r.GetStore(), r.GetVersion())
	c := &commit{request: r, keys: keys, woken: make(chan bool, 1)}
	j.queueMu.Lock()
	j.queue = append(j.queue, c)
	writes := !j.writing
	j.writing = true
	j.queueMu.Unlock()
	// The write must not be cut short when this caller goes away: it has the commits of others.
	if writes || !<-c.woken {
		j.commitAll(context.WithoutCancel(ctx))
	}
	if c.err != nil {
		return nil, c.err
	}
	return &api.Recorded{Version: c.version}, nil
}

// commitAll writes the queue, the caller's commit included, wakes the callers whose commits are
// done, and passes the duty to write to the first caller that has queued since. Only the caller
// that has the duty calls it.
func (j *job) commitAll(ctx context.Context) {
	// Rest before taking the queue, not after: the commits that arrive during the pause join this
	// write.
	if wait := time.Until(j.rests); wait > 0 {
		time.Sleep(wait)
	}
	j.mu.Lock()
	done := j.commitQueue(ctx)
	j.mu.Unlock()
	if n := j.service.countWatchers(j.key()); n > restFrom {
		j.rests = time.Now().Add(time.Duration(n) * restEach)
	}
	for _, c := range done {
		c.woken <- true
	}
	j.queueMu.Lock()
	defer j.queueMu.Unlock()
	if j.writing = len(j.queue) > 0; j.writing {
		j.queue[0].woken <- false
	}
}

// commitQueue takes the queue, applies each commit to the owners in memory, writes all changes in
// one call to the store, and sends them to watchers. It returns the commits, with version or err
// set. The caller holds j.mu.
//
// If the write fails, the owners in memory are restored and every commit fails with UNAVAILABLE.
// The store may have some of the changes all the same (see settle), which is why proxies keep
// holding the keys and try again.
func (j *job) commitQueue(ctx context.Context) (queue []*commit) {
	// The decision that nobody writes is made under queueMu, so that no commit can be queued after
	// it without its caller noticing that it has to write.
	j.queueMu.Lock()
	queue, j.queue = j.queue, nil
	j.queueMu.Unlock()
	if err := j.settle(ctx); err != nil {
		j.giveBack(queue, err)
		return queue
	}
	version, changes := j.version, []*api.Change(nil)
	for _, c := range queue {
		// A refused commit fails alone. One that changes nothing was recorded before; it succeeds
		// with the version so far.
		changed, err := j.apply(c)
		if err != nil || len(changed) == 0 {
			c.err, c.version = err, version
			continue
		}
		// Merge commits into one change, up to the size of an entry.
		if n := len(changes); n == 0 || len(changes[n-1].GetDisplaced().GetFirst())+len(changed) > MaxRecord {
			version++
			changes = append(changes, &api.Change{Version: version, Mark: newMark(), Displaced: &api.Displaced{}})
		}
		last := changes[len(changes)-1]
		last.Batch, c.version = c.request.GetBatch(), version
		for _, r := range changed {
			last.Displaced.First, last.Displaced.Last, last.Displaced.Owner = append(last.Displaced.First, r.First), append(last.Displaced.Last, r.Last), append(last.Displaced.Owner, r.Owner)
		}
	}
	if len(changes) == 0 {
		return queue
	}
	var entries []store.Entry
	if j.version == 0 { // the run may have none yet
		entries = append(entries, j.headEntry(j.held))
	}
	for _, change := range changes {
		shorten(change.GetDisplaced())
		entry, err := protoEntry(j.logName(change.GetVersion()), change)
		if err == nil {
			entries = append(entries, entry)
			continue
		}
		j.giveBack(queue, status.Error(codes.Internal, err.Error()))
		return queue
	}
	if err := j.write(ctx, entries); err != nil {
		j.unsure = true
		j.giveBack(queue, unavailable(err))
		return queue
	}
	// From here on the changes are recorded, and watchers may know.
	for _, change := range changes {
		j.service.sendToAll(j.logChange(change))
	}
	j.compact(ctx)
	return queue
}

// giveBack fails the commits that have not failed yet and undoes them, the last one first, since a
// later commit may have moved a key on from where an earlier one put it.
func (j *job) giveBack(queue []*commit, err error) {
	for _, c := range slices.Backward(queue) {
		if c.err == nil {
			j.revert(c)
			c.err = err
		}
	}
}

// logChange adds a change that is in the log to the state of the run, except for its owners, which
// have it already, and returns its event.
func (j *job) logChange(c *api.Change) *told {
	j.version, j.mark = c.GetVersion(), c.GetMark()
	event := j.event()
	event.Event = &api.PlanEvent_Change{Change: c}
	told, ranges := newTold(event), len(c.GetDisplaced().GetFirst())
	j.recent.addChange(told, ranges)
	j.logged += ranges
	return told
}

// apply checks a commit against the owners and then changes them in memory. It returns the changed
// ranges, with Home for keys that came home, and none if the keys have their new owner already. It
// changes nothing if it returns an error. The caller holds j.mu.
//
// A key that belongs to a third server makes the whole commit fail: the proxy's copy is out of
// date, and it must read it again before it routes by it.
func (j *job) apply(c *commit) ([]plan.Range, error) {
	from, to := c.request.GetFrom(), c.request.GetTo()
	if j.gone {
		return nil, status.Errorf(codes.NotFound, "job %s was forgotten", j.name)
	}
	if err := j.refuseLost(codes.Unavailable); err != nil {
		return nil, err
	}
	if !plan.Owns(from, j.servers) || !plan.Owns(to, j.servers) {
		return nil, status.Errorf(codes.InvalidArgument, "recording for job %s: from server %d to %d, it has %d", j.name, from, to, j.servers)
	}
	// A command is done when its keys are where they shall be, and then they stay there. A move
	// that began before it, and has taken until now, comes too late. Keys in parts may become
	// whole: proxies do that by themselves.
	stay := j.held && (plan.PartsOf(to) > 0 || j.moving == nil && plan.PartsOf(from) == 0)
	var moved []plan.Keys
	// Keys that do not overlap are cut at most this often: where ranges begin and end, and where
	// homes meet. With more, each would stand for all that the run has.
	cuts := len(c.keys) + 2*j.owners.Ranges() + j.servers
	for _, k := range c.keys {
		for r := range j.owners.Resolved(k, j.servers) {
			if cuts--; cuts < 0 || len(moved) == MaxRecord {
				return nil, status.Errorf(codes.InvalidArgument, "recording for job %s: the keys overlap, or lie in more than %d ranges", j.name, MaxRecord)
			}
			switch r.Owner {
			case to: // recorded before
			case from:
				if stay {
					return nil, status.Errorf(codes.FailedPrecondition, "keys %d to %d of job %s stay where they are: keys were restored home, or a plan was rolled back (psidecar plan apply resumes)", r.First, r.Last, j.name)
				}
				moved = append(moved, r.Keys)
			default:
				return nil, status.Errorf(codes.FailedPrecondition, "keys %d to %d of job %s belong to server %d, not %d", r.First, r.Last, j.name, r.Owner, from)
			}
		}
	}
	// All keys are checked before the first one changes.
	var changed []plan.Range
	for _, k := range moved {
		j.owners.Assign(k, to, j.servers)
		c.undo = append(c.undo, plan.Range{Keys: k, Owner: from})
		for r := range j.owners.Within(k) {
			changed = append(changed, r)
		}
	}
	return changed, nil
}

// revert restores the owners that apply has replaced.
func (j *job) revert(c *commit) {
	for _, r := range c.undo {
		j.owners.Assign(r.Keys, r.Owner, j.servers)
	}
	c.undo = nil
}

// unavailable turns an error of the store into a gRPC status: UNAVAILABLE if trying again can help.
func unavailable(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
