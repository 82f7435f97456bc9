package plans

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
)

// Entries of the store, all below "job/NAME/", numbers in hexadecimal:
//
//	head             see head
//	snap/V/PART      the displaced keys at version V: api.Displaced
//	log/V            the change that made version V: api.Change
//	epoch/E          a plan's account: api.Epoch
//	move/B           a batch of epoch B>>24: api.MoveBatch
//
// Truth is the snapshot that head names and the log after it. What is older
// than the snapshot, or a part of one that head does not name, is rubbish of an
// interrupted write.

// head is JSON, so that people can read it.
type head struct {
	Format    int    `json:"format"` // 1
	Servers   int    `json:"servers"`
	Held      bool   `json:"held,omitempty"`
	Snapshot  uint64 `json:"snapshot,omitempty"`
	SnapParts int    `json:"snap_parts,omitempty"`
}

const headFormat = 1

// logSlack is how many ranges the log may have beyond those of the snapshot.
const logSlack = 1 << 16

func (j *job) name1(kind string, number uint64) string {
	return fmt.Sprintf("job/%s/%s/%016x", j.name, kind, number)
}
func (j *job) logName(version uint64) string { return j.name1("log", version) }
func (j *job) epochName(e uint64) string     { return j.name1("epoch", e) }
func (j *job) moveName(batch uint64) string  { return j.name1("move", batch) }
func (j *job) snapName(version uint64, part int) string {
	return fmt.Sprintf("%s/%06x", j.name1("snap", version), part)
}

// cutName returns the job of an entry, and the rest of its name. A job's name
// has no slash before its kind that is not its own.
func cutName(name string) (job, rest string, ok bool) {
	name, ok = strings.CutPrefix(name, "job/")
	if !ok {
		return "", "", false
	}
	for _, kind := range []string{"/head", "/snap/", "/log/", "/epoch/", "/move/"} {
		if at := strings.LastIndex(name, kind); at >= 0 {
			return name[:at], name[at+1:], true
		}
	}
	return "", "", false
}

func protoEntry(name string, m proto.Message) (store.Entry, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return store.Entry{}, fmt.Errorf("writing %s: %w", name, err)
	}
	if value == nil {
		value = []byte{}
	}
	return store.Entry{Name: name, Value: value}, nil
}

func (j *job) epochEntry(e *epoch) (store.Entry, error) {
	return protoEntry(j.epochName(e.info.GetEpoch()), e.info)
}

func (j *job) headEntry() store.Entry {
	h := head{Format: headFormat, Servers: j.servers, Held: j.held, Snapshot: j.snapshot, SnapParts: j.snapParts}
	value, err := json.Marshal(h)
	if err != nil {
		panic(err) // numbers and a truth value
	}
	return store.Entry{Name: fmt.Sprintf("job/%s/head", j.name), Value: value}
}

// movesGone returns what removes an epoch's moves from the store.
func (j *job) movesGone(e *epoch) []store.Entry {
	entries := make([]store.Entry, e.batches)
	for i := range entries {
		entries[i].Name = j.moveName(e.info.GetEpoch()<<24 | uint64(i))
	}
	return entries
}

// readMoves returns all batches of an epoch, from the store.
func (j *job) readMoves(ctx context.Context, e *epoch) ([]*api.MoveBatch, error) {
	var batches []*api.MoveBatch
	err := j.service.store.Each(ctx, func(name string, value []byte) error {
		job, rest, ok := cutName(name)
		if !ok || job != j.name || !strings.HasPrefix(rest, "move/") {
			return nil
		}
		b := &api.MoveBatch{}
		if err := proto.Unmarshal(value, b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if b.GetEpoch() == e.info.GetEpoch() {
			batches = append(batches, b)
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	return batches, nil
}

// compact writes a new snapshot when the log has grown long.
func (j *job) compact(ctx context.Context) {
	if j.logged < j.service.logSlack+2*j.owners.Ranges() {
		return
	}
	var entries []store.Entry
	var ranges []plan.Range
	part := 0
	flush := func() bool {
		entry, err := protoEntry(j.snapName(j.version, part), displaced(ranges))
		entries = append(entries, entry)
		part, ranges = part+1, ranges[:0]
		return err == nil
	}
	for r := range j.owners.All() {
		if len(ranges) == pieceRanges && !flush() {
			return
		}
		ranges = append(ranges, r)
	}
	if !flush() {
		return
	}
	old, oldParts := j.snapshot, j.snapParts
	j.snapshot, j.snapParts = j.version, part
	entries = append(entries, j.headEntry())
	for i := range oldParts {
		entries = append(entries, store.Entry{Name: j.snapName(old, i)})
	}
	for v := old + 1; v <= j.version; v++ {
		entries = append(entries, store.Entry{Name: j.logName(v)})
	}
	if err := j.service.store.Write(ctx, entries); err != nil {
		j.snapshot, j.snapParts = old, oldParts // the log goes on; another time
		return
	}
	j.logged = 0
}

// saved is what the store has of a job.
type saved struct {
	head    head
	snaps   map[uint64]map[int][]plan.Range
	changes []*api.Change
	epochs  []*epoch
	moves   []*api.MoveBatch
}

// load reads all jobs.
func (s *Service) load(ctx context.Context) error {
	jobs := map[string]*saved{}
	err := s.store.Each(ctx, func(name string, value []byte) error {
		job, rest, ok := cutName(name)
		if !ok {
			return nil
		}
		if jobs[job] == nil {
			jobs[job] = &saved{snaps: map[uint64]map[int][]plan.Range{}}
		}
		if err := jobs[job].take(rest, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name, saved := range jobs {
		if saved.head.Format == 0 {
			continue // was forgotten, or never quite begun
		}
		j, err := s.open(name, saved.head.Servers)
		if err != nil {
			return err
		}
		if err := j.restoreFrom(ctx, saved); err != nil {
			return fmt.Errorf("job %s: %w", name, err)
		}
	}
	return nil
}

func (s *saved) take(rest string, value []byte) error {
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
		e := &epoch{info: &api.Epoch{}, reports: map[uint64]*api.MoveReport{}}
		if err := proto.Unmarshal(value, e.info); err != nil {
			return err
		}
		s.epochs = append(s.epochs, e)
	case "move":
		b := &api.MoveBatch{}
		if err := proto.Unmarshal(value, b); err != nil {
			return err
		}
		s.moves = append(s.moves, b)
	}
	return nil
}

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

// restoreFrom makes the job what it was.
func (j *job) restoreFrom(ctx context.Context, s *saved) error {
	j.held, j.snapshot, j.snapParts, j.version = s.head.Held, s.head.Snapshot, s.head.SnapParts, s.head.Snapshot
	for part := range j.snapParts {
		ranges, ok := s.snaps[j.snapshot][part]
		if !ok {
			return fmt.Errorf("the snapshot of version %d lacks part %d of %d", j.snapshot, part, j.snapParts)
		}
		for _, r := range ranges {
			j.owners.Set(r)
		}
	}
	slices.SortFunc(s.changes, func(a, b *api.Change) int { return cmp.Compare(a.GetVersion(), b.GetVersion()) })
	for _, c := range s.changes {
		if c.GetVersion() <= j.snapshot {
			continue
		}
		if c.GetVersion() != j.version+1 {
			return fmt.Errorf("change %d follows %d: the store is damaged; proxies know what is displaced, and hold on until it is mended", c.GetVersion(), j.version)
		}
		ranges, err := rangesOf(c.GetDisplaced())
		if err != nil {
			return fmt.Errorf("change %d: %w", c.GetVersion(), err)
		}
		for _, r := range ranges {
			j.owners.Set(r)
		}
		j.version = c.GetVersion()
		j.logged += len(ranges)
	}
	j.restoreEpochs(ctx, s)
	return nil
}

// restoreEpochs takes up again what was being carried out.
func (j *job) restoreEpochs(ctx context.Context, s *saved) {
	slices.SortFunc(s.epochs, func(a, b *epoch) int { return cmp.Compare(a.info.GetEpoch(), b.info.GetEpoch()) })
	j.epochs = s.epochs
	for _, b := range s.moves {
		e := j.epoch(b.GetEpoch())
		if e == nil {
			continue
		}
		e.batches = max(e.batches, int(b.GetBatch()&(1<<24-1))+1)
		switch e.info.GetState() {
		case api.Epoch_PROPOSED:
			e.waiting = append(e.waiting, b)
		case api.Epoch_MOVING:
			if j.pending(b) {
				e.waiting = append(e.waiting, b)
			}
		}
	}
	if j.moving = j.newest(api.Epoch_MOVING); j.moving != nil {
		for _, e := range j.epochs {
			if e != j.moving && e.info.GetState() == api.Epoch_MOVING {
				e.info.State, e.waiting = api.Epoch_SUPERSEDED, nil
			}
		}
		j.openMore(ctx)
	}
}

// pending reports whether a batch still has keys to move.
func (j *job) pending(b *api.MoveBatch) bool {
	keys, err := keysOf(b.GetFirst(), b.GetLast())
	if err != nil {
		return false
	}
	for _, k := range keys {
		for r := range j.owners.Resolved(k, j.servers) {
			if r.Owner == b.GetFrom() {
				return true
			}
		}
	}
	return false
}
