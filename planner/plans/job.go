package plans

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// A job is the state of the keys of one run of a job.
//
// The store has the same state as a snapshot at version snapshot and a log of the changes up to
// version (journal.go). epochs that are MOVING have their batches in the store too, so that a
// restarted planner reopens them.
//
// Invariants, while mu is not held: owners are those of the store at version, unless unsure; moving
// is nil or the one epoch that is MOVING; while lost is not nil, nothing is recorded and no owners
// are sent. queue is empty while writing is false.
type job struct {
	name    string
	run     plan.Run
	service *Service
	// When the run was opened last, by the count of Service.opened; guarded by Service.mu.
	opened uint64

	queueMu sync.Mutex // guards queue and writing
	// Commits of Record, in the order in which they came.
	queue []*commit
	// writing is set while some caller of Record has the duty to write the queue. It is handed from
	// caller to caller (record.go).
	writing bool
	// rests is the earliest time of the next write. Only the caller that has the duty to write uses
	// it; queueMu orders one such caller before the next.
	rests time.Time

	mu sync.Mutex // guards the rest
	// gone is set when the run was dropped. Callers that found it before hold a pointer to it.
	gone    bool
	servers int
	// version counts the recorded changes. mark is the random number drawn for that version.
	version uint64
	mark    uint64
	owners  plan.Owners
	held    bool
	trouble string
	// Plans in ascending order of their numbers, at most MaxEpochs.
	epochs []*epoch
	// The epoch that is being carried out; nil if none is.
	moving *epoch
	// torn is set when a write has failed: the head and the epochs in the store may differ from
	// those here. The next write begins by writing them anew (repair).
	torn    bool
	stray   stray
	handler map[int32]*api.Handler
	// stores are the ids of earlier stores whose versions this one continues: proxies that saw a
	// version there accept ours. At most maxStores.
	stores []string
	// lost is not nil while the store lacks what proxies have seen (teach.go).
	lost   *lost
	recent recent
	whole  whole

	// snapshot is the version of the snapshot on disk, 0 if there is none. It has snapParts parts
	// and the mark snapMark.
	snapshot  uint64
	snapParts int
	snapMark  uint64
	// logged is the number of ranges in the log since the snapshot. It decides when to write the
	// next one.
	logged int
	// unsure is set when a write of owners has failed: the store may have them or not. They are
	// read back before anything depends on them (settle).
	unsure bool
}

func newJob(s *Service, k runKey, servers int) *job {
	return &job{name: k.job, run: k.run, service: s, servers: servers, handler: map[int32]*api.Handler{}}
}

func (j *job) key() runKey { return runKey{j.name, j.run} }

// check returns why a proposal cannot be accepted, and otherwise adopts its number of servers. The
// caller holds j.mu.
//
// The number of servers decides which keys are at home. It may change only while no key is
// displaced and none is moving; otherwise every stored owner would change its meaning.
func (j *job) check(p Proposal) error {
	switch {
	case j.gone:
		return fmt.Errorf("job %s was forgotten just now", j.name)
	case j.lost != nil:
		return j.refuseLost(codes.FailedPrecondition)
	case p.Servers != j.servers && (j.owners.Ranges() > 0 || j.moving != nil):
		return fmt.Errorf("job %s has %d servers, but keys are displaced by a plan for %d: move them home (psidecar restore), or if that job has ended, drop the plan (psidecar plan forget)", j.name, p.Servers, j.servers)
	case len(p.Targets) > MaxRanges:
		return fmt.Errorf("a plan for job %s moves %d ranges of keys: at most %d", j.name, len(p.Targets), MaxRanges)
	}
	for _, r := range p.Targets {
		if r.Owner < 0 || int(r.Owner) >= p.Servers || r.Last < r.First {
			return fmt.Errorf("a plan for job %s gives keys %d to %d to server %d of %d", j.name, r.First, r.Last, r.Owner, p.Servers)
		}
	}
	j.servers = p.Servers
	return nil
}

// stored reports whether the store may have entries of the run. The caller holds j.mu.
func (j *job) stored() bool {
	return j.version > 0 || len(j.epochs) > 0 || j.unsure || j.torn || j.stray.epoch != 0 || j.lost != nil
}

func (j *job) isGone() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.gone
}

// epoch returns the epoch of that number, or nil.
func (j *job) epoch(number uint64) *epoch {
	i, ok := slices.BinarySearchFunc(j.epochs, number, func(e *epoch, n uint64) int {
		switch {
		case e.info.GetEpoch() < n:
			return -1
		case e.info.GetEpoch() > n:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return j.epochs[i]
}

// newest returns the newest epoch in one of the states, or nil.
func (j *job) newest(states ...api.Epoch_State) *epoch {
	for _, e := range slices.Backward(j.epochs) {
		if slices.Contains(states, e.info.GetState()) {
			return e
		}
	}
	return nil
}

// lastEpoch returns the number of the newest epoch, 0 where there is none.
func (j *job) lastEpoch() uint64 {
	if len(j.epochs) == 0 {
		return 0
	}
	return j.epochs[len(j.epochs)-1].info.GetEpoch()
}

// describe returns everything about the run for operators. It copies what may change, so the caller
// may send it without the lock.
func (j *job) describe() *api.JobPlan {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &api.JobPlan{
		Job: j.name, Servers: uint32(j.servers), Version: j.version,
		Strategy: j.service.opts.Strategy, Acts: j.service.acts(j.name), Held: j.held, Trouble: j.trouble,
		DisplacedKeys: j.owners.Keys(), DisplacedRanges: uint64(j.owners.Ranges()), Owned: make([]uint64, j.servers),
		Proxies: uint32(j.service.countWatchers(j.key())),
		Run:     string(j.run), Running: j.service.used(j.key()), Lost: j.lostText(), Runs: uint32(j.service.countRuns(j.name)),
	}
	if j.run.Valid() {
		p.BeganUnixNanos = j.run.Began().UnixNano()
	}
	for r := range j.owners.All() {
		if int(r.Owner) < len(p.GetOwned()) {
			p.Owned[r.Owner] += r.Len()
		}
	}
	for _, e := range j.epochs {
		info := e.describe()
		if e == j.moving {
			info.Waits = j.waits()
		}
		p.Epochs = append(p.Epochs, info)
	}
	for rank := range int32(j.servers) {
		if h := j.handler[rank]; h != nil {
			p.Handlers = append(p.Handlers, proto.CloneOf(h))
		}
	}
	return p
}

// event returns an event of the job.
func (j *job) event() *api.PlanEvent {
	return &api.PlanEvent{Job: j.name, Run: string(j.run), Servers: uint32(j.servers)}
}

// displaced encodes ranges as they are sent and stored. It does not keep the slice.
func displaced(ranges []plan.Range) *api.Displaced {
	d := &api.Displaced{First: make([]uint64, len(ranges)), Last: make([]uint64, len(ranges)), Owner: make([]int32, len(ranges))}
	for i, r := range ranges {
		d.First[i], d.Last[i], d.Owner[i] = r.First, r.Last, r.Owner
	}
	shorten(d)
	return d
}

// shorten drops the last keys if every range is a single key, and all owners but one if they are
// equal. That is the common case, a batch of scattered keys to one server, and saves about half of
// its bytes.
func shorten(d *api.Displaced) {
	if slices.Equal(d.GetFirst(), d.GetLast()) {
		d.Last = nil
	}
	if owners := d.GetOwner(); len(owners) > 0 && !slices.ContainsFunc(owners, func(o int32) bool { return o != owners[0] }) {
		d.Owner = owners[:1]
	}
}

// rangesOf decodes what displaced has encoded. Input from the network is checked for its lengths
// and for the order of each range, not for overlap or valid ranks.
func rangesOf(d *api.Displaced) ([]plan.Range, error) {
	n := len(d.GetFirst())
	if l := len(d.GetLast()); l != 0 && l != n {
		return nil, fmt.Errorf("%d last keys of %d ranges", l, n)
	}
	if l := len(d.GetOwner()); l != n && l != 1 {
		return nil, fmt.Errorf("%d owners of %d ranges", l, n)
	}
	ranges := make([]plan.Range, n)
	for i, first := range d.GetFirst() {
		ranges[i] = plan.Range{Keys: plan.One(first), Owner: d.GetOwner()[min(i, len(d.GetOwner())-1)]}
		if d.GetLast() != nil {
			ranges[i].Last = d.GetLast()[i]
		}
		if ranges[i].Last < first {
			return nil, fmt.Errorf("keys %d to %d", first, ranges[i].Last)
		}
	}
	return ranges, nil
}

// keysOf returns the ranges of a request. last is empty if every range is a single key.
func keysOf(first, last []uint64) ([]plan.Keys, error) {
	if len(last) != 0 && len(last) != len(first) {
		return nil, fmt.Errorf("%d last keys of %d ranges", len(last), len(first))
	}
	keys := make([]plan.Keys, len(first))
	for i, f := range first {
		keys[i] = plan.One(f)
		if len(last) > 0 {
			keys[i].Last = last[i]
		}
		if keys[i].Last < f {
			return nil, fmt.Errorf("keys %d to %d", f, keys[i].Last)
		}
	}
	return keys, nil
}
