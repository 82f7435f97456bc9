package jobs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// fetch asks the planner's store for the owners of keys, for a site that joins; the caller holds
// x.mu. The answer comes by fetched.
func (x *job) fetch() {
	if x.jobs.plans == nil { // no key moves
		x.site.Fetched(x.router.Table())
		return
	}
	if x.fetching {
		return
	}
	// A Record call of this host's previous proxy may still be on its way, and must not arrive
	// after the answer.
	wait := settled - time.Since(x.learned)
	if x.answered {
		wait = 0
	}
	x.fetching = x.jobs.start(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		x.mu.Lock()
		x.asking = true
		x.mu.Unlock()
		x.jobs.plans.again()
	})
}

// settled is how long after its start a proxy waits until it takes the planner's table for final: a
// Record call of the killed proxy that was still in flight has arrived by then. One that has ended
// in order leaves answeredFile instead.
const settled = 400 * time.Millisecond

// answeredFile is an empty file that a proxy leaves which ends in order: all its Record calls were
// answered. Requests then need not wait for settled.
const answeredFile = "answered"

// leaveAnswered leaves answeredFile if it is true. Without it, as where the disk is full, the next
// proxy waits.
func (x *job) leaveAnswered() {
	x.mu.Lock()
	defer x.mu.Unlock()
	// While this proxy joins, there may be a call of the one before it.
	if x.site == nil || x.gone || !x.displaced || x.site.Joining() != nil || time.Since(x.unanswered) < settled {
		return
	}
	if err := os.WriteFile(filepath.Join(x.dir, answeredFile), nil, 0o600); err != nil {
		x.jobs.log.Debug("the next proxy waits before it routes requests", "job", x.name, "error", err)
	}
}

// takeAnswered reports whether the proxy before this one has left answeredFile, and removes it:
// the next proxy must not find it if this one is killed.
func (x *job) takeAnswered() bool {
	err := os.Remove(filepath.Join(x.dir, answeredFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.jobs.log.Warn("cannot remove a file from the state directory", "job", x.name, "error", err)
	}
	return err == nil
}

// fetched gives the planner's table to the site that asked for it.
func (x *job) fetched(t *route.Table) {
	x.locked(func() error {
		if x.asking {
			x.fetching, x.asking = false, false
			x.jobs.log.Debug("key owners received", "job", x.name)
			if err := x.checkOwners(t); err != nil {
				x.failed = err
				x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", err)
				return err
			}
			x.site.Fetched(t)
			if x.router.Ready() {
				x.keepJournal()
			}
		}
		return nil
	})
}

// checkOwners returns an error where a table of the planner has owners that this version does not know, such
// as those of keys in parts on spare servers, which earlier versions had.
func (x *job) checkOwners(t *route.Table) (err error) {
	if !t.Parted() {
		return nil
	}
	t.All(func(r plan.Range) bool {
		if !plan.Owns(r.Owner, x.servers) {
			err = reason.Errorf(reason.State, "job %s: key %d has owner %d, which this version does not know: restart the job", x.name, r.First, r.Owner)
		}
		return err == nil
	})
	return err
}

// record has the planner's store write a move; the caller holds x.mu. Only the listed status codes
// are an answer: they say that the move is on disk, or that it was refused for good. After any
// other error, as a timeout, it may be on disk or not; the site repeats the record until it knows.
func (x *job) record(r *migrate.Record) {
	if x.recording[r.Batch] {
		return
	}
	// The site repeats its record in each tick; one call at a time is enough.
	x.recording[r.Batch] = true
	first, last := ranges(r.Keys)
	// The store refuses a record if it is not the store, or lacks a version, that this host has
	// seen: it would not know what else has moved.
	request := &api.RecordRequest{Job: x.name, Run: string(x.run), Host: x.jobs.opts.Host, Batch: r.Plan, From: r.From, To: r.To, First: first, Last: last, Store: x.seen.store, Version: x.seen.version}
	x.jobs.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		recorded, err := x.jobs.plans.planner().Record(ctx, request)
		x.jobs.log.Debug("recorded", "job", x.name, "batch", r.Batch, "from", r.From, "to", r.To, "keys", r.Keys, "error", err)
		x.locked(func() error {
			delete(x.recording, r.Batch)
			if err == nil {
				x.see(x.seen.store, recorded.GetVersion(), nil)
			}
			// Only these codes are an answer: the move is on disk, or never will be. After any
			// other error, as a timeout, it may be either, and the site repeats the record until it
			// knows.
			switch status.Code(err) {
			case codes.OK, codes.FailedPrecondition, codes.NotFound, codes.InvalidArgument:
				x.site.Recorded(r.Batch, err)
			default:
				x.unanswered = time.Now() // the site records it again
			}
			return nil
		})
	})
}
