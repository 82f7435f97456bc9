package plans

import (
	"math/rand/v2"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
)

// A told is an event for many watchers. It is encoded once, since encoding would
// dominate with a thousand hosts. It is not changed any more.
type told struct {
	*api.PlanEvent
	encode func() ([]byte, error)
}

func newTold(e *api.PlanEvent) *told {
	return &told{e, sync.OnceValues(func() ([]byte, error) { return proto.Marshal(e) })}
}

// Encoded returns the event as on the wire; see package planner.
func (t *told) Encoded() ([]byte, error) { return t.encode() }

func (t *told) key() runKey { return runKey{t.GetJob(), plan.Run(t.GetRun())} }

// recentRanges is how many ranges the newest changes have together that are kept for
// proxies which come back.
const recentRanges = 1 << 17

// recent are the newest changes of a run, in order, without a gap up to the run's
// version: what a proxy lacks that has a copy of a while ago.
//
// Invariant: ranges is the sum of theirs.
type recent struct {
	after   uint64 // the version that the first goes on from, and its mark
	mark    uint64
	changes []change
	ranges  int
}

// change is a recorded change of owners that watchers may still need, and its number of
// ranges, by which the list is bounded.
type change struct {
	event  *told
	ranges int
}

// reset forgets all: what comes next goes on from that version.
func (r *recent) reset(version, mark uint64) { *r = recent{after: version, mark: mark} }

// addChange adds the newest change, and forgets the oldest ones where there are too many.
func (r *recent) addChange(e *told, ranges int) {
	r.changes = append(r.changes, change{e, ranges})
	r.ranges += ranges
	for r.ranges > recentRanges && len(r.changes) > 1 {
		first := r.changes[0].event.GetChange()
		r.after, r.mark = first.GetVersion(), first.GetMark()
		r.ranges -= r.changes[0].ranges
		r.changes[0] = change{}
		r.changes = r.changes[1:]
	}
}

// since returns the changes after a version; ok is false where some are not known
// any more, or that version is another one.
func (r *recent) since(version, mark uint64) (events []*told, ok bool) {
	ok = mark != 0 && version == r.after && mark == r.mark
	for _, c := range r.changes {
		if ok {
			events = append(events, c.event)
		}
		if v := c.event.GetChange(); v.GetVersion() == version {
			ok = mark != 0 && v.GetMark() == mark
		}
	}
	return events, ok
}

// whole is the snapshot of a run at a version, encoded once for all new watchers.
type whole struct {
	version, epoch uint64
	servers        int
	pieces         []*told
}

// whereKeysAre returns the events that bring a watcher's copy of owners up to date:
// the changes that it lacks, or a snapshot. The caller holds j.mu.
func (j *job) whereKeysAre(r *api.Running) []*told {
	if r.GetCopyMark() != 0 && int(r.GetServers()) == j.servers {
		if changes, ok := j.recent.since(r.GetCopyVersion(), r.GetCopyMark()); ok {
			e := j.event()
			e.Event = &api.PlanEvent_Kept{Kept: &api.Kept{Version: r.GetCopyVersion(), Stores: append([]string{j.service.id}, j.stores...)}}
			return append([]*told{newTold(e)}, changes...)
		}
	}
	if w := &j.whole; w.pieces == nil || w.version != j.version || w.epoch != j.lastEpoch() || w.servers != j.servers {
		j.whole = whole{version: j.version, epoch: j.lastEpoch(), servers: j.servers}
		for _, e := range j.pieces() {
			j.whole.pieces = append(j.whole.pieces, newTold(e))
		}
	}
	return j.whole.pieces
}

// newMark returns a version's mark.
func newMark() uint64 { return rand.Uint64() | 1 }
