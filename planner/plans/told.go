package plans

import (
	"math/rand/v2"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// A told is an event for many watchers. It is encoded on first use and once for all, since with a
// thousand hosts encoding would dominate. The event must not change after newTold.
type told struct {
	*api.PlanEvent
	encode func() ([]byte, error)
}

func newTold(e *api.PlanEvent) *told {
	return &told{e, sync.OnceValues(func() ([]byte, error) { return proto.Marshal(e) })}
}

// Encoded returns the event's wire form. planner.Intake sends it in place of marshalling the
// message again.
func (t *told) Encoded() ([]byte, error) { return t.encode() }

func (t *told) key() runKey { return runKey{t.GetJob(), plan.Run(t.GetRun())} }

// recentRanges bounds the ranges of the newest changes that are kept for proxies that reconnect. A
// proxy that was away for longer gets a snapshot.
const recentRanges = 1 << 17

// recent has the newest changes of a run, oldest first and without a gap up to the run's version.
// With them a proxy that has a copy of a while ago is brought up to date without a snapshot.
//
// Invariant: ranges is the sum of the ranges of changes, at most recentRanges unless there is a
// single change.
type recent struct {
	// The state that the first change follows: its version and mark.
	after   uint64
	mark    uint64
	changes []change
	ranges  int
}

// A change is one recorded change, encoded for watchers, and the number of its ranges.
type change struct {
	event  *told
	ranges int
}

// reset forgets all changes: the next one follows the given state.
func (r *recent) reset(version, mark uint64) { *r = recent{after: version, mark: mark} }

// addChange appends the newest change and drops the oldest ones beyond recentRanges.
func (r *recent) addChange(e *told, ranges int) {
	r.changes = append(r.changes, change{e, ranges})
	r.ranges += ranges
	for r.ranges > recentRanges && len(r.changes) > 1 {
		first := r.changes[0].event.GetChange()
		r.after, r.mark = first.GetVersion(), first.GetMark()
		r.ranges -= r.changes[0].ranges
		// Release the event; the slice may keep its array for long.
		r.changes[0] = change{}
		r.changes = r.changes[1:]
	}
}

// since returns the changes after a state. ok is false if some are no longer kept, or if the
// version there has another mark and so is of another history. A mark of 0 is that of an old store
// without marks, and never matches.
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

// whole caches the encoded snapshot of a run. When a thousand proxies reconnect after a restart,
// they all receive the same one.
type whole struct {
	version, epoch uint64
	servers        int
	pieces         []*told
}

// whereKeysAre returns the events that bring a proxy's copy up to date: Kept and the changes that
// it lacks, if its copy is known and recent, else a snapshot. The caller holds j.mu.
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

// newMark draws a version's mark. It is odd, and so never 0.
func newMark() uint64 { return rand.Uint64() | 1 }
