package plans

import (
	"context"
	"errors"

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
	done    bool // under job.mu
	version uint64
	err     error
	undo    []plan.Range // what was before, as ranks
}

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
	c := &commit{request: r, keys: keys}
	j.queueMu.Lock()
	j.queue = append(j.queue, c)
	j.queueMu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !c.done { // nobody did it with theirs
		j.commitQueue(context.WithoutCancel(ctx))
	}
	if c.err != nil {
		return nil, c.err
	}
	return &api.Recorded{Version: c.version}, nil
}

// commitQueue applies, writes and tells all that waits.
func (j *job) commitQueue(ctx context.Context) {
	j.queueMu.Lock()
	queue := j.queue
	j.queue = nil
	j.queueMu.Unlock()
	var entries []store.Entry
	var events []*api.PlanEvent
	version, ranges := j.version, 0
	for _, c := range queue {
		c.done = true
		changed, err := j.apply(c)
		if err != nil || len(changed) == 0 {
			c.err, c.version = err, version
			continue
		}
		version++
		c.version = version
		change := &api.Change{Version: version, Displaced: displaced(changed), Batch: c.request.GetBatch()}
		entry, err := protoEntry(j.logName(version), change)
		if err != nil {
			c.err = status.Error(codes.Internal, err.Error())
			j.revert(c)
			version--
			continue
		}
		entries = append(entries, entry)
		event := j.event()
		event.Event = &api.PlanEvent_Change{Change: change}
		events = append(events, event)
		ranges += len(changed)
	}
	if len(entries) == 0 {
		return
	}
	if err := j.service.write(ctx, append(j.before(version), entries...)); err != nil {
		j.unsure = max(j.unsure, version)
		for i := len(queue) - 1; i >= 0; i-- {
			if c := queue[i]; c.err == nil {
				j.revert(c)
				c.err = unavailable(err)
			}
		}
		return
	}
	j.version, j.unsure = version, 0
	j.logged += ranges
	for _, e := range events {
		j.service.tell(e)
	}
	j.compact(ctx)
}

// before returns what must be written before changes up to version are: the
// head, if there is none yet, and the removal of what an interrupted write may
// have left, so that the log has no change that nobody was told of.
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
	if from < 0 || to < 0 || int(from) >= j.servers || int(to) >= j.servers {
		return nil, status.Errorf(codes.InvalidArgument, "recording for job %s: from server %d to %d, it has %d", j.name, from, to, j.servers)
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
