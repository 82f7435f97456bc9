package plans

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

const (
	// maxStores is how many earlier stores a run's lineage keeps.
	maxStores = 16
	// maxStoreID is how long the id of a store may be. Those of newID have 32 bytes.
	maxStoreID = 256
)

// lost is the state of a run of which proxies have seen more than the store has. Until its hosts
// have taught the owners of its keys (plan.Merge), nothing of the run is recorded, planned or sent:
// an owner that is out of date would direct a push to a server that no longer has the value.
type lost struct {
	// Stores that proxies have seen and that the run's lineage lacks, the newest maxStores. They
	// join it when the run is found again. A proxy that has seen none of them asks anew then.
	stores []string
	// The highest version that a proxy has seen. The rebuilt state gets a higher one, so that it is
	// newer for every proxy.
	version uint64
	// By the host's names, at most maxWatchers. A host that teaches again replaces its lesson.
	lessons map[string]*plan.Lesson
	waits   []string // hosts that have yet to teach, as far as is known
}

// lineage returns the ids of the stores whose versions the run continues, this store's last.
func (j *job) lineage() []string { return append(slices.Clone(j.stores), j.service.id) }

// lose marks the run as lost and asks its proxies to teach, or adds to what is known of a run that
// is lost already. The plan in progress ends: its moves are of owners that may be wrong. The caller
// holds j.mu.
func (j *job) lose(id string, version uint64) {
	if j.lost == nil {
		j.lost = &lost{lessons: map[string]*plan.Lesson{}}
		j.service.opts.Log.Error("the store lacks records of a run that proxies have seen: it was lost, or is an old copy. No keys of the run move until its proxies have taught the store where keys are",
			"job", j.name, "run", j.run, "store", j.service.id, "version", j.version, "seen_store", id, "seen_version", version)
		if j.moving != nil {
			j.endNow(j.moving, api.Epoch_SUPERSEDED)
		}
		j.service.tellEvent(j.lostEvent())
	}
	// A host that has moved no key has seen no store.
	if id != "" && len(id) <= maxStoreID && id != j.service.id && !slices.Contains(j.lost.stores, id) {
		j.lost.stores = append(j.lost.stores, id)
		j.lost.stores = j.lost.stores[max(0, len(j.lost.stores)-maxStores):]
	}
	j.lost.version = max(j.lost.version, version)
}

// lostText explains the state to operators. It returns "" if the run is not lost.
func (j *job) lostText() string {
	if j.lost == nil {
		return ""
	}
	text := "the store does not know where keys of this run are: it was lost or is an old copy. The run's proxies are teaching it"
	if len(j.lost.waits) > 0 {
		text += "; waiting for those on " + strings.Join(j.lost.waits, ", ")
	}
	return text + ". If their state is lost too, restore the store that was in use, or restart the job"
}

func (j *job) lostEvent() *api.PlanEvent {
	e := j.event()
	e.Event = &api.PlanEvent_Lost{Lost: &api.Lost{Store: j.service.id, Message: j.lostText()}}
	return e
}

// Teach implements api.PlansServer. It collects one host's lesson from the pieces of the stream,
// and rebuilds the owners of the run if the lessons so far suffice. Teaching a run that is not lost
// is harmless: several hosts teach at once, and the last ones may come after the run was rebuilt.
func (s *Service) Teach(stream grpc.ClientStreamingServer[api.Lesson, api.Taught]) error {
	var l plan.Lesson
	var first *api.Lesson
	for n := 0; ; {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		// Only a host that takes part in the run may teach. The first piece decides which run that
		// is.
		if first == nil {
			first = piece
			if err := s.carries(first.GetHost(), runKey{first.GetJob(), plan.Run(first.GetRun())}); err != nil {
				return status.Error(codes.FailedPrecondition, err.Error())
			}
		}
		// A bound on the whole lesson; gRPC bounds only the pieces.
		if n += len(piece.GetDisplaced().GetFirst()) + len(piece.GetHeld().GetFirst()); n > MaxRanges {
			return status.Errorf(codes.InvalidArgument, "a lesson of more than %d ranges", MaxRanges)
		}
		if err := addLesson(&l, piece, int(first.GetServers())); err != nil {
			return status.Errorf(codes.InvalidArgument, "a lesson for job %s: %v", first.GetJob(), err)
		}
	}
	if first == nil || len(l.Sites) == 0 {
		return status.Error(codes.InvalidArgument, "the lesson names no job or no sites")
	}
	j, err := s.findRun(first.GetJob(), first.GetRun())
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.gone:
		return status.Errorf(codes.NotFound, "job %s was forgotten", j.name)
	case j.lost == nil:
		return stream.SendAndClose(&api.Taught{Done: true})
	case j.servers != int(first.GetServers()):
		return status.Errorf(codes.InvalidArgument, "a lesson for %d servers, job %s has %d", first.GetServers(), j.name, j.servers)
	}
	// This host may have seen more than the one that was noticed first.
	j.lose(first.GetStore(), first.GetVersion())
	host := strings.Join(l.Sites, " ")
	if j.lost.lessons[host] == nil && len(j.lost.lessons) >= maxWatchers {
		return status.Errorf(codes.ResourceExhausted, "%d hosts have taught job %s already", maxWatchers, j.name)
	}
	j.lost.lessons[host] = &l
	if err := j.acceptTaught(context.WithoutCancel(stream.Context())); err != nil {
		return err
	}
	if j.lost == nil {
		return stream.SendAndClose(&api.Taught{Done: true})
	}
	return stream.SendAndClose(&api.Taught{WaitsFor: j.lost.waits})
}

// addLesson adds a piece to a lesson and checks all that comes from the network. A later piece
// overrules an earlier one for the same key.
func addLesson(l *plan.Lesson, p *api.Lesson, servers int) error {
	if servers < 1 || servers > MaxServers {
		return fmt.Errorf("%d servers", servers)
	}
	l.Sites, l.AllSites = append(l.Sites, p.GetSites()...), append(l.AllSites, p.GetAllSites()...)
	if len(l.Sites) > MaxServers || len(l.AllSites) > 1<<16 {
		return fmt.Errorf("%d and %d hosts", len(l.Sites), len(l.AllSites))
	}
	if len(p.GetDisplaced().GetFirst()) > 0 {
		ranges, err := rangesOf(p.GetDisplaced())
		if err != nil {
			return err
		}
		for _, r := range ranges {
			if !plan.Owns(r.Owner, servers) {
				return fmt.Errorf("owner %d of %d", r.Owner, servers)
			}
			l.Owners.Assign(r.Keys, r.Owner, servers)
		}
	}
	if len(p.GetHeld().GetFirst()) > 0 {
		held, err := keysOf(p.GetHeld().GetFirst(), p.GetHeld().GetLast())
		if err != nil {
			return err
		}
		for _, k := range held {
			// Any owner but plan.Home marks the keys as held.
			l.Held.Set(plan.Range{Keys: k})
		}
	}
	return nil
}

// acceptTaught rebuilds the owners of a lost run if the lessons suffice, and otherwise notes which
// hosts are missing. The rebuilt state is one snapshot with a version above every one seen, is on
// disk before anybody hears of it, and leaves the run lost if it cannot be written. Watchers then
// receive it as a whole. The caller holds j.mu.
func (j *job) acceptTaught(ctx context.Context) error {
	var lessons []plan.Lesson
	for _, host := range slices.Sorted(maps.Keys(j.lost.lessons)) {
		lessons = append(lessons, *j.lost.lessons[host])
	}
	owners, waits := plan.Merge(lessons, j.servers)
	if j.lost.waits = waits; len(waits) > 0 {
		return nil
	}
	// The log may be longer than is known, and the snapshot must come after all of it.
	if err := j.settle(ctx); err != nil {
		return err
	}
	before, version, mark, stores := j.owners, j.version, j.mark, j.stores
	j.owners, j.version, j.mark = owners, max(j.version, j.lost.version)+1, newMark()
	for _, id := range j.lost.stores {
		if !slices.Contains(j.stores, id) {
			// The capacity is cut so that append copies: stores must stay intact for the case that
			// the write fails.
			j.stores = append(j.stores[:len(j.stores):len(j.stores)], id)
		}
	}
	j.stores = j.stores[max(0, len(j.stores)-maxStores):]
	if err := j.writeSnapshot(ctx, version); err != nil {
		j.owners, j.version, j.mark, j.stores = before, version, mark, stores
		return unavailable(err)
	}
	j.lost = nil
	// No proxy has a copy from which changes could go on.
	j.recent.reset(j.version, j.mark)
	j.service.opts.Log.Info("the store has learned where keys of a run are", "job", j.name, "run", j.run, "version", j.version, "displaced_keys", j.owners.Keys())
	for _, e := range j.pieces() {
		j.service.tellEvent(e)
	}
	listed := j.event()
	listed.Event = &api.PlanEvent_Listed{Listed: true}
	j.service.tellEvent(listed)
	return nil
}

// refuseLost returns the error for calls that need the owners of a lost run, and nil if the run is
// not lost.
func (j *job) refuseLost(code codes.Code) error {
	if j.lost == nil {
		return nil
	}
	return status.Errorf(code, "job %s: %s", j.name, j.lostText())
}
