package plans

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// saved collects the entries of one run while the store is read. Entries come in the order of their
// names, which is neither the order of versions across kinds nor that of writing, so nothing is
// applied before all are there.
type saved struct {
	head    head
	snaps   map[uint64]map[int][]plan.Range
	changes []*api.Change
	epochs  []*epoch
	moves   []*api.MoveBatch
	// By epoch that is over, the number of its batches so far. What these move does not matter any
	// more, and a large job has some hundred thousand of them.
	over map[uint64]int
}

func newSaved() *saved {
	return &saved{snaps: map[uint64]map[int][]plan.Range{}, over: map[uint64]int{}}
}

// load reads all runs from the store, and reopens the batches of plans that were being carried out.
// It runs before the service is published, so no lock is contended.
func (s *Service) load(ctx context.Context) error {
	jobs := map[runKey]*saved{}
	names := nameCutter{}
	err := s.store.Each(ctx, func(name string, value []byte) error {
		if name == identityName {
			return s.identify(value)
		}
		job, rest, ok := names.cut(name)
		if !ok {
			return nil
		}
		if jobs[job] == nil {
			jobs[job] = newSaved()
		}
		if err := jobs[job].readEntry(rest, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for k, saved := range jobs {
		// The head is written first and removed with the rest. Without one the entries are
		// leftovers of an interrupted removal.
		if saved.head.Format == 0 {
			continue
		}
		j, err := s.openRun(ctx, k, saved.head.Servers)
		if err != nil {
			return err
		}
		j.stores, j.held = saved.head.Stores, saved.head.Held
		if err := j.readOwners(saved); err != nil {
			return fmt.Errorf("job %s: %w", k.job, err)
		}
		j.restoreEpochs(ctx, saved)
	}
	return nil
}

// identify adopts the id in the store instead of the one drawn by New.
func (s *Service) identify(value []byte) error {
	var i identity
	if err := json.Unmarshal(value, &i); err != nil {
		return fmt.Errorf("the store's id: %w", err)
	}
	if i.Format != 1 || i.ID == "" {
		return fmt.Errorf("the store's id has format %d, this psidecar knows 1", i.Format)
	}
	s.id = i.ID
	s.identified.Store(true)
	return nil
}

// readEntry decodes one entry, by the kind with which the rest of its name begins. Unknown kinds
// are ignored.
func (s *saved) readEntry(rest string, value []byte) error {
	kind, number, _ := strings.Cut(rest, "/")
	switch kind {
	case "head":
		if err := json.Unmarshal(value, &s.head); err != nil {
			return err
		}
		if s.head.Format != headFormat {
			return fmt.Errorf("it has format %d, this psidecar knows %d", s.head.Format, headFormat)
		}
	case "snap":
		return s.takeSnap(number, value)
	case "log":
		c := &api.Change{}
		if err := proto.Unmarshal(value, c); err != nil {
			return err
		}
		s.changes = append(s.changes, c)
	case "epoch":
		e := newEpoch(&api.Epoch{})
		e.kept = bytes.Clone(value)
		if err := proto.Unmarshal(value, e.info); err != nil {
			return err
		}
		s.epochs = append(s.epochs, e)
		if state := e.info.GetState(); state != api.Epoch_PROPOSED && state != api.Epoch_MOVING {
			s.over[e.info.GetEpoch()] = 0
		}
	case "move":
		batch, err := strconv.ParseUint(number, 16, 64)
		if err != nil {
			return err
		}
		if n, ok := s.over[batch>>24]; ok {
			s.over[batch>>24] = max(n, batchCount(batch))
			return nil
		}
		b := &api.MoveBatch{}
		if err := proto.Unmarshal(value, b); err != nil {
			return err
		}
		s.moves = append(s.moves, b)
	}
	return nil
}

// takeSnap decodes one part of a snapshot. number is "VERSION/PART" in hexadecimal.
func (s *saved) takeSnap(number string, value []byte) error {
	version, part, _ := strings.Cut(number, "/")
	v, err := strconv.ParseUint(version, 16, 64)
	if err != nil {
		return err
	}
	p, err := strconv.ParseUint(part, 16, 31)
	if err != nil {
		return err
	}
	d := &api.Displaced{}
	if err := proto.Unmarshal(value, d); err != nil {
		return err
	}
	ranges, err := rangesOf(d)
	if err != nil {
		return err
	}
	if s.snaps[v] == nil {
		s.snaps[v] = map[int][]plan.Range{}
	}
	s.snaps[v][int(p)] = ranges
	return nil
}

// readOwners rebuilds the owners: the snapshot that head names, then the changes after it, which
// must be consecutive. Everything else is a leftover of an interrupted write and is ignored. A gap
// means that an acknowledged record is missing; then the planner does not start.
func (j *job) readOwners(s *saved) error {
	j.snapshot, j.snapParts, j.version = s.head.Snapshot, s.head.SnapParts, s.head.Snapshot
	for part := range j.snapParts {
		ranges, ok := s.snaps[j.snapshot][part]
		if !ok {
			return fmt.Errorf("the snapshot of version %d is missing part %d of %d", j.snapshot, part, j.snapParts)
		}
		for _, r := range ranges {
			j.owners.Set(r)
		}
	}
	j.mark, j.snapMark = s.head.Mark, s.head.Mark
	j.recent.reset(j.version, j.mark)
	slices.SortFunc(s.changes, func(a, b *api.Change) int { return cmp.Compare(a.GetVersion(), b.GetVersion()) })
	for _, c := range s.changes {
		// The snapshot was written, and the planner ended before it had removed the log.
		if c.GetVersion() <= j.snapshot {
			continue
		}
		if c.GetVersion() != j.version+1 {
			return fmt.Errorf("change %d follows %d: the store is damaged; proxies keep the known owners until it is repaired", c.GetVersion(), j.version)
		}
		ranges, err := rangesOf(c.GetDisplaced())
		if err != nil {
			return fmt.Errorf("change %d: %w", c.GetVersion(), err)
		}
		for _, r := range ranges {
			j.owners.Set(r)
		}
		// Proxies that reconnect after the restart catch up from these changes instead of a
		// snapshot.
		j.logChange(c)
	}
	return nil
}

// restoreEpochs attaches the stored batches to their epochs and reopens those of the epoch that was
// being carried out. Batches have no stored state of progress: a batch is pending if its source
// still owns one of its keys. Reopening one that a proxy is working on is harmless, since the proxy
// knows it by number.
func (j *job) restoreEpochs(ctx context.Context, s *saved) {
	slices.SortFunc(s.epochs, func(a, b *epoch) int { return cmp.Compare(a.info.GetEpoch(), b.info.GetEpoch()) })
	j.epochs = s.epochs
	for _, e := range j.epochs {
		e.batches = s.over[e.info.GetEpoch()]
	}
	for _, b := range s.moves {
		count := batchCount(b.GetBatch())
		e := j.epoch(b.GetEpoch())
		if e == nil {
			// The planner ended while it wrote the next epoch. A dropped epoch's number does not
			// come again.
			if b.GetEpoch() == j.lastEpoch()+1 {
				j.addStray(b.GetEpoch(), count)
			}
			continue
		}
		e.batches = max(e.batches, count)
		switch e.info.GetState() {
		case api.Epoch_PROPOSED:
			e.wait(b)
		case api.Epoch_MOVING:
			if j.pending(b) {
				e.wait(b)
			}
		}
	}
	// A planner that ended within a write may leave two epochs MOVING, or a proposal and the one
	// that replaces it. The older one was to be superseded.
	j.moving = j.newest(api.Epoch_MOVING)
	for i, e := range j.epochs {
		state := e.info.GetState()
		if state == api.Epoch_MOVING && e != j.moving || state == api.Epoch_PROPOSED && i < len(j.epochs)-1 {
			e.info.State = api.Epoch_SUPERSEDED
			e.drop()
		}
	}
	if j.moving != nil {
		j.openMore(ctx)
	}
}

// batchCount returns how many batches an epoch has at least that has one with this number: its low 24
// bits count them.
func batchCount(batch uint64) int { return int(batch&(1<<24-1)) + 1 }

// pending reports whether the source of a batch still owns some of its keys.
func (j *job) pending(b *api.MoveBatch) bool { return len(j.left(b)) > 0 }

// left returns the keys of a batch that its source still owns.
func (j *job) left(b *api.MoveBatch) (left []plan.Keys) {
	keys, err := keysOf(b.GetFirst(), b.GetLast())
	if err != nil {
		return nil
	}
	for _, k := range keys {
		for r := range j.owners.Resolved(k, j.servers) {
			if r.Owner == b.GetFrom() {
				left = append(left, r.Keys)
			}
		}
	}
	return left
}
