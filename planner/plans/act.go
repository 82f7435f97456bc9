package plans

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// Act implements api.PlansServer. It returns when the command is on disk; the moves follow. Package
// internal/control has checked that the caller is an operator.
func (s *Service) Act(ctx context.Context, r *api.ActRequest) (*api.Acted, error) {
	name, err := s.meant(r)
	if err != nil {
		return nil, err
	}
	j, err := s.find(name)
	if err != nil {
		return nil, err
	}
	if s.opts.Forgetful {
		return nil, status.Error(codes.FailedPrecondition, "this planner has no store and would forget where keys are, so it moves none: start it with --store FILE")
	}
	// An operator who presses Ctrl-C must not leave half of a command on disk.
	ctx = context.WithoutCancel(ctx)
	if r.GetAction() == api.ActRequest_FORGET {
		return &api.Acted{}, s.forgetJob(ctx, name)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	// Moves computed from owners that are not known would be wrong.
	if err := j.refuseLost(codes.FailedPrecondition); err != nil {
		return nil, err
	}
	if err := j.settle(ctx); err != nil {
		return nil, err
	}
	var e *epoch
	switch r.GetAction() {
	case api.ActRequest_APPLY:
		e, err = j.applyProposed(ctx, r.GetEpoch())
	case api.ActRequest_ROLLBACK:
		e, err = j.rollback(ctx)
	case api.ActRequest_RESTORE:
		e, err = j.restore(ctx)
	default:
		return nil, status.Errorf(codes.InvalidArgument, "no action %v", r.GetAction())
	}
	if err != nil {
		return nil, err
	}
	return &api.Acted{Epoch: e.info.GetEpoch(), Keys: e.info.GetKeys()}, nil
}

// scheduler returns the scheduler's address of a job that is named by it or by its name.
func (s *Service) scheduler(name string) string {
	if s.opts.Scheduler == nil || name == "" {
		return name
	}
	return s.opts.Scheduler(name)
}

// acts reports whether a plan for a job is carried out as soon as it is proposed. The wish of the
// job's owner comes before the planner's own option.
func (s *Service) acts(job string) bool {
	if s.opts.Forgetful {
		return false
	}
	if s.opts.Wish != nil {
		if wish := s.opts.Wish(job); wish != "" {
			return wish == "true"
		}
	}
	return s.opts.Act
}

// meant returns the job that an operator means: the one named, else the only one, else the only one
// that runs. FORGET cannot be undone, so with several jobs it needs a name.
func (s *Service) meant(r *api.ActRequest) (string, error) {
	if r.GetJob() != "" {
		return s.scheduler(r.GetJob()), nil
	}
	all := s.newestRuns()
	switch len(all) {
	case 0:
		return "", status.Error(codes.NotFound, "no job has a plan")
	case 1:
		return all[0].name, nil
	}
	var names, running []string
	for _, j := range all {
		names = append(names, j.name)
		if s.used(j.key()) {
			running = append(running, j.name)
		}
	}
	if len(running) == 1 && r.GetAction() != api.ActRequest_FORGET {
		return running[0], nil
	}
	return "", status.Errorf(codes.InvalidArgument, "several jobs have plans: select one with --job: %s", strings.Join(names[:min(len(names), 8)], ", "))
}

// applyProposed starts a proposed plan, the newest one if number is 0, and lets later plans be
// carried out again. The caller holds j.mu.
func (j *job) applyProposed(ctx context.Context, number uint64) (*epoch, error) {
	e := j.newest(api.Epoch_PROPOSED)
	if number != 0 {
		e = j.epoch(number)
	}
	switch {
	case e == nil && number != 0 && number < j.lastEpoch():
		return nil, status.Errorf(codes.NotFound, "epoch %d of job %s was replaced by a newer plan: see psidecar plan show", number, j.name)
	case e == nil && number != 0:
		return nil, status.Errorf(codes.NotFound, "job %s has no epoch %d", j.name, number)
	case e == nil:
		return nil, status.Errorf(codes.NotFound, "job %s has no plan that was proposed and not applied", j.name)
	case e.info.GetState() != api.Epoch_PROPOSED:
		return nil, status.Errorf(codes.FailedPrecondition, "epoch %d of job %s is %s: only one that is proposed can be applied", e.info.GetEpoch(), j.name, e.info.GetState())
	}
	return e, j.start(ctx, &transition{held: false}, e)
}

// rollback returns the keys that the newest applied plan has moved to their former owners. Keys
// that a later plan or command has moved elsewhere since stay where they are. The caller holds j.mu.
func (j *job) rollback(ctx context.Context) (*epoch, error) {
	if j.moving.rollsBack() {
		// The keys of the plan before it are not where that plan has put them yet.
		return nil, status.Errorf(codes.FailedPrecondition, "epoch %d of job %s is being rolled back: wait until that is done (psidecar plan show), or move all keys home (psidecar restore)", j.moving.info.GetRollsBack(), j.name)
	}
	undone := j.toRollBack()
	if undone == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "job %s has no plan that was applied and not rolled back", j.name)
	}
	number := undone.info.GetEpoch()
	targets, err := j.takenBack(ctx, number)
	if err != nil {
		return nil, err
	}
	t := &transition{held: true}
	if err := j.end(t, undone, api.Epoch_ROLLED_BACK); err != nil {
		return nil, err
	}
	return j.command(ctx, t, &api.Epoch{Reason: fmt.Sprintf("rolls back epoch %d", number), RollsBack: number}, targets)
}

// toRollBack returns the newest epoch that was applied and not rolled back, or nil. Rollbacks
// themselves are passed over, so that repeated rollbacks go back plan by plan.
func (j *job) toRollBack() *epoch {
	for _, e := range slices.Backward(j.epochs) {
		switch e.info.GetState() {
		case api.Epoch_PROPOSED, api.Epoch_ROLLED_BACK:
			continue
		}
		// A proposal can be superseded before it was ever applied.
		if e.info.GetAppliedUnixNanos() != 0 && !e.rollsBack() {
			return e
		}
	}
	return nil
}

// rollsBack reports whether the epoch takes another one back. e may be nil.
func (e *epoch) rollsBack() bool { return e != nil && e.info.GetRollsBack() != 0 }

// restore moves every displaced key to its home. Servers save their models by home range, so
// operators call it before a checkpoint. The caller holds j.mu.
func (j *job) restore(ctx context.Context) (*epoch, error) {
	return j.command(ctx, &transition{held: true}, &api.Epoch{Reason: "moves all keys home", Restores: true}, j.homes())
}

// command carries out an operator's plan at once and holds the job: later proposals are stored but
// not started until an operator applies one. Otherwise the next decision would undo what the
// operator asked for. info says why the plan is made. The caller holds j.mu.
func (j *job) command(ctx context.Context, t *transition, info *api.Epoch, targets []plan.Range) (*epoch, error) {
	if old := j.newest(api.Epoch_PROPOSED); old != nil { // it was made for other owners
		if err := j.end(t, old, api.Epoch_SUPERSEDED); err != nil {
			return nil, err
		}
	}
	info.Epoch, info.Strategy, info.MadeUnixNanos = j.lastEpoch()+1, "asked for", j.service.opts.Now().UnixNano()
	e := newEpoch(info)
	return e, j.addEpoch(ctx, t, e, j.moves(targets), true, nil)
}

// forgetJob drops all runs of a job. It refuses while a run that some host uses has displaced keys:
// a proxy that is replaced later could not learn where they are and would ask the wrong server.
func (s *Service) forgetJob(ctx context.Context, name string) error {
	s.mu.Lock()
	runs := s.runsOf(name)
	s.mu.Unlock()
	err := s.dropRuns(ctx, runs, func(j *job) error {
		used, keys := s.used(j.key()), j.owners.Keys()
		switch {
		case used && keys > 0:
			return status.Errorf(codes.FailedPrecondition, "%d keys of job %s are displaced, and it is running: move them home first (psidecar restore --job %s --wait 1m), or stop the job", keys, name, name)
		// Nobody uses an unnamed run by its name, but a proxy that names no runs may still carry
		// out its batches.
		case j.moving != nil && (used || j.run == ""):
			return status.Errorf(codes.FailedPrecondition, "keys of job %s are being moved: roll the plan back first", name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Proxies that still watch must learn that nothing is displaced.
	for _, j := range runs {
		for _, e := range j.pieces() {
			s.tellEvent(e)
		}
	}
	return nil
}
