package plans

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
)

// A commit is one Record that waits to be written.
type commit struct {
	request *api.RecordRequest
	keys    []plan.Keys
	// woken tells the caller that its commit is done (true), or that it is to write
	// what waits (false).
	woken   chan bool
	version uint64
	err     error
	undo    []plan.Range // what was before, as ranks
}

// restEach is the pause after a write, for each proxy that gets it: Records that
// come meanwhile are written, and sent, together. To tell a thousand proxies takes
// some ten milliseconds of processor time. So few as restFrom do not matter.
const (
	restEach = 50 * time.Microsecond
	restFrom = 32
)

// Record implements api.PlansServer. Those that come while the disk is busy are
// written together.
func (s *Service) Record(ctx context.Context, r *api.RecordRequest) (*api.Recorded, error) {
	j, err := s.findRun(r.GetJob(), r.GetRun())
	if err != nil && r.GetRun() != "" {
		// Whether it was recorded by a store that is gone is not known here.
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
	j.checkSeen(r.GetStore(), r.GetVersion())
	c := &commit{request: r, keys: keys, woken: make(chan bool, 1)}
	j.queueMu.Lock()
	j.queue = append(j.queue, c)
	writes := !j.writing
	j.writing = true
	j.queueMu.Unlock()
	if writes || !<-c.woken {
		j.commitAll(context.WithoutCancel(ctx))
	}
	if c.err != nil {
		return nil, c.err
	}
	return &api.Recorded{Version: c.version}, nil
}

// commitAll writes what waits, the caller's among it, and has another caller go on
// with what has come meanwhile.
func (j *job) commitAll(ctx context.Context) {
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

// commitQueue applies, writes and tells all that waits, and returns it.
func (j *job) commitQueue(ctx context.Context) (queue []*commit) {
	j.queueMu.Lock()
	queue, j.queue = j.queue, nil
	j.queueMu.Unlock()
	version, changes := j.version, []*api.Change(nil)
	for _, c := range queue {
		changed, err := j.apply(c)
		if err != nil || len(changed) == 0 {
			c.err, c.version = err, version
			continue
		}
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
	entries := j.before(version)
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
	if err := j.service.writeEntries(ctx, entries); err != nil {
		j.unsure = max(j.unsure, version)
		j.giveBack(queue, unavailable(err))
		return queue
	}
	j.version, j.mark, j.unsure = version, changes[len(changes)-1].GetMark(), 0
	for _, change := range changes {
		event := j.event()
		event.Event = &api.PlanEvent_Change{Change: change}
		told, ranges := newTold(event), len(change.GetDisplaced().GetFirst())
		j.recent.addChange(told, ranges)
		j.logged += ranges
		j.service.sendToAll(told)
	}
	j.compact(ctx)
	return queue
}

// giveBack takes back what commits did that are not written.
func (j *job) giveBack(queue []*commit, err error) {
	for _, c := range slices.Backward(queue) {
		if c.err == nil {
			j.revert(c)
			c.err = err
		}
	}
}

// before returns the entries that must be written before changes up to version: the
// head, if there is none yet, and the removal of leftovers of an interrupted write,
// so that the log has no change that no proxy got.
func (j *job) before(version uint64) []store.Entry {
	var entries []store.Entry
	if j.version == 0 {
		entries = append(entries, j.headEntry())
	}
	for v := j.unsure; v > max(version, j.version); v-- {
		entries = append(entries, store.Entry{Name: j.logName(v)})
	}
	return entries
}

// apply changes the owners in memory and returns what changed, with Home where
// keys came home; nothing where all was so already.
func (j *job) apply(c *commit) ([]plan.Range, error) {
	from, to := c.request.GetFrom(), c.request.GetTo()
	if j.gone {
		return nil, status.Errorf(codes.NotFound, "job %s was forgotten", j.name)
	}
	if err := j.refuseLost(codes.Unavailable); err != nil {
		return nil, err
	}
	switch {
	case !plan.Owns(from, j.servers) || !plan.Owns(to, j.servers):
		return nil, status.Errorf(codes.InvalidArgument, "recording for job %s: from server %d to %d, it has %d", j.name, from, to, j.servers)
	case plan.PartsOf(to) > 0 && j.held:
		return nil, status.Errorf(codes.FailedPrecondition, "keys of job %s stay whole: they were brought home, or a plan was taken back (psidecar plan apply lets go on)", j.name)
	}
	var moved []plan.Keys
	for _, k := range c.keys {
		for r := range j.owners.Resolved(k, j.servers) {
			switch r.Owner {
			case to:
			case from:
				moved = append(moved, r.Keys)
			default:
				return nil, status.Errorf(codes.FailedPrecondition, "keys %d to %d of job %s belong to server %d, not to %d", r.First, r.Last, j.name, r.Owner, from)
			}
		}
	}
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

func (j *job) revert(c *commit) {
	for _, r := range c.undo {
		j.owners.Assign(r.Keys, r.Owner, j.servers)
	}
	c.undo = nil
}

func unavailable(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
