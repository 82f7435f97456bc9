package plans

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// A world is a planner with its disk, two servers with a key each, and the proxies of the two hosts
// that move the keys of one server each. explore_test.go goes through its states.
type world struct {
	disk   *cutDisk
	s      *Service
	hosts  [2]host
	budget budget
	// By key: the server to which the proxies route it.
	owner [2]int32
	// The plans that an operator was shown: their moves, by number.
	shown map[uint64]string
}

// budget is what can happen yet.
type budget struct {
	Propose, Apply, Restore, Rollback int
	Kill                              int // the planner is killed, at any entry that it writes
	Fail                              int // a write fails, at any entry
	Break                             int // a Watch breaks
	Dies                              int // a proxy is killed
	Refuse                            int // a proxy refuses to move a key
}

var (
	worldRun  = plan.NewRun("", time.UnixMilli(1_700_000_000_000), 1)
	worldKeys = [2]uint64{10, 1<<63 + 10} // at home with servers 0 and 1
	// What is proposed, one after the other: the keys change places, and one goes home.
	worldPlans = [][]plan.Range{
		{target(worldKeys[0], worldKeys[0], 1), target(worldKeys[1], worldKeys[1], 0)},
		{target(worldKeys[0], worldKeys[0], 0), target(worldKeys[1], worldKeys[1], 0)},
	}
)

// host is a proxy: the mover of the server of the same number.
type host struct {
	watch *watcher // nil: it does not watch
	inbox []*api.PlanEvent
	// Batches that it has accepted and not finished, and reports that it has not sent.
	batches []*api.MoveBatch
	reports []*api.MoveReport
	moves   []attempt
	// It was killed while a record was under way, and has to learn where its keys are.
	joins         bool
	version, mark uint64 // of its copy of the owners
	displaced     plan.Owners
}

// attempt is a move in progress. sent says that it may be recorded.
type attempt struct {
	batch *api.MoveBatch
	key   int
	sent  bool
}

// cutDisk is a store of which a write can be cut. A frozen one is that of a planner that was killed:
// it writes nothing more.
type cutDisk struct {
	entries map[string][]byte
	writes  []int // the number of entries of each write
	at, cut int   // write number at ends after cut entries; -1: none does
	kills   bool
	frozen  bool
}

func (d *cutDisk) Each(_ context.Context, each func(string, []byte) error) error {
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		if err := each(name, d.entries[name]); err != nil {
			return err
		}
	}
	return nil
}

func (d *cutDisk) Write(_ context.Context, entries []store.Entry) error {
	if d.frozen {
		return fmt.Errorf("%w: killed", store.ErrUnavailable)
	}
	n, cut := len(entries), d.at == len(d.writes)
	if d.writes = append(d.writes, n); cut {
		n, d.frozen = d.cut, d.kills
	}
	for _, e := range entries[:n] {
		if e.Value == nil {
			delete(d.entries, e.Name)
		} else {
			d.entries[e.Name] = bytes.Clone(e.Value)
		}
	}
	if cut {
		return fmt.Errorf("%w: after %d of %d entries", store.ErrUnavailable, n, len(entries))
	}
	return nil
}

func (d *cutDisk) Close() error { return nil }

func (d *cutDisk) copy() *cutDisk { return &cutDisk{entries: maps.Clone(d.entries), at: -1} }

func worldOptions() Options {
	return Options{Act: true, Now: func() time.Time { return time.Unix(1, 0) }, Log: slog.New(slog.DiscardHandler)}
}

// start returns a planner that starts from a disk.
func start(d *cutDisk) (*Service, error) { return New(context.Background(), d, worldOptions()) }

// newWorld returns the world in which the first plan is being carried out and both hosts watch.
func newWorld(b budget) (*world, error) {
	w := &world{disk: &cutDisk{entries: map[string][]byte{}, at: -1}, budget: b, owner: [2]int32{0, 1}, shown: map[uint64]string{}}
	var err error
	if w.s, err = start(w.disk); err != nil {
		return nil, err
	}
	for i := range w.hosts {
		w.open(i)
	}
	_, err = w.s.Propose(context.Background(), w.proposal(0))
	w.collect()
	for i := range w.hosts {
		for _, e := range w.hosts[i].inbox {
			w.hear(i, e)
		}
		w.hosts[i].inbox = nil
	}
	return w, err
}

func (w *world) proposal(n int) Proposal {
	return Proposal{Job: testJob, Run: worldRun, Servers: 2, Targets: worldPlans[n%len(worldPlans)]}
}

// job returns the run.
func (w *world) job() *job { return w.s.runs[runKey{testJob, worldRun}] }

// open begins a Watch, and returns what is wrong with what it tells.
func (w *world) open(i int) (failure string) {
	h := &w.hosts[i]
	r := &api.Running{Job: testJob, Run: string(worldRun), Servers: 2, Used: true, Routed: true, Moves: []int32{int32(i)}, CopyVersion: h.version, CopyMark: h.mark}
	if h.version > 0 {
		r.Store, r.Version = w.s.id, h.version
	}
	w.s.beginRun(context.Background(), r)
	h.watch = &watcher{host: fmt.Sprint("h", i), runs: map[runKey]*api.Running{{testJob, worldRun}: r}, events: make(chan *told, 64)}
	first, err := w.s.addWatcher(h.watch)
	if err != nil {
		return fmt.Sprintf("host %d cannot watch: %v", i, err)
	}
	// Nothing begins before the end of the list, so it may as well be heard at once.
	h.inbox = nil
	listed := map[uint64]bool{}
	for _, e := range first {
		listed[e.GetMove().GetBatch()] = true
		if failure = w.hear(i, e.PlanEvent); failure != "" {
			return failure
		}
	}
	h.cancel(func(b *api.MoveBatch) bool { return !listed[b.GetBatch()] })
	h.reports = nil
	if h.joins {
		h.joins = false
		for key, k := range worldKeys {
			if w.owner[key] = h.displaced.Owner(k); w.owner[key] == plan.Home {
				w.owner[key] = int32(key)
			}
		}
	}
	return ""
}

// collect takes the events that the planner has queued, and has batches reported that are done.
// Moves and their ends wait until a host hears of them; when a copy of the owners learns of a change
// decides about nothing.
func (w *world) collect() (failure string) {
	for i := range w.hosts {
		h := &w.hosts[i]
		for h.watch != nil && len(h.watch.events) > 0 {
			e := (<-h.watch.events).PlanEvent
			if e.GetMove() != nil || e.GetCancel() != nil {
				h.inbox = append(h.inbox, e)
			} else if failure = w.hear(i, e); failure != "" {
				return failure
			}
		}
		for _, b := range slices.Clone(h.batches) {
			if !slices.ContainsFunc(keysIn(b), func(key int) bool { return w.moving(key) || w.owner[key] == b.GetFrom() }) {
				h.finish(b, &api.MoveReport{MovedKeys: 1})
			}
		}
	}
	return ""
}

// close ends a Watch; what is on its way is lost.
func (w *world) close(i int) {
	if h := &w.hosts[i]; h.watch != nil {
		w.s.removeWatcher(h.watch)
		h.watch, h.inbox = nil, nil
	}
}

// hear has a host handle an event.
func (w *world) hear(i int, e *api.PlanEvent) (failure string) {
	h := &w.hosts[i]
	switch {
	case e.GetMove() != nil:
		if b := e.GetMove(); h.find(b.GetBatch()) < 0 {
			h.batches = append(h.batches, b)
		}
	case e.GetCancel() != nil:
		h.cancel(func(b *api.MoveBatch) bool { return b.GetBatch() == e.GetCancel().GetBatch() })
	case e.GetSnapshot() != nil:
		s := e.GetSnapshot()
		h.displaced, h.version, h.mark = plan.Owners{}, s.GetVersion(), s.GetMark()
		return h.learn(s.GetDisplaced())
	case e.GetChange() != nil:
		h.version, h.mark = e.GetChange().GetVersion(), e.GetChange().GetMark()
		return h.learn(e.GetChange().GetDisplaced())
	case e.GetLost() != nil:
		return "the planner says that its store is lost"
	}
	return ""
}

func (h *host) learn(d *api.Displaced) string {
	if len(d.GetFirst()) == 0 {
		return ""
	}
	ranges, err := rangesOf(d)
	if err != nil {
		return err.Error()
	}
	for _, r := range ranges {
		h.displaced.Set(r)
	}
	return ""
}

func (h *host) find(batch uint64) int {
	return slices.IndexFunc(h.batches, func(b *api.MoveBatch) bool { return b.GetBatch() == batch })
}

// cancel drops batches. A move that has begun goes on.
func (h *host) cancel(drop func(b *api.MoveBatch) bool) {
	h.batches = slices.DeleteFunc(slices.Clone(h.batches), drop)
}

// finish has a batch reported that is done.
func (h *host) finish(b *api.MoveBatch, r *api.MoveReport) {
	h.cancel(func(o *api.MoveBatch) bool { return o.GetBatch() == b.GetBatch() })
	r.Job, r.Run, r.Batch, r.Done = testJob, string(worldRun), b.GetBatch(), true
	h.reports = append(slices.Clone(h.reports), r)
}

// keyOf returns the key of a batch. Each has one, since the keys have different homes and are never
// moved from one server to another together, unless both are there.
func keysIn(b *api.MoveBatch) (keys []int) {
	for i, k := range worldKeys {
		if slices.Contains(b.GetFirst(), k) {
			keys = append(keys, i)
		}
	}
	return keys
}

// record has a move recorded, and takes the answer.
func (w *world) record(i, n int) {
	h := &w.hosts[i]
	m := h.moves[n]
	_, err := w.s.Record(context.Background(), &api.RecordRequest{Job: testJob, Run: string(worldRun), Batch: m.batch.GetBatch(),
		From: m.batch.GetFrom(), To: m.batch.GetTo(), First: []uint64{worldKeys[m.key]}})
	h.moves = slices.Clone(h.moves)
	switch status.Code(err) {
	case codes.OK:
		w.owner[m.key] = m.batch.GetTo()
		h.moves = slices.Delete(h.moves, n, n+1)
	case codes.FailedPrecondition, codes.NotFound, codes.InvalidArgument:
		h.moves = slices.Delete(h.moves, n, n+1)
	default:
		h.moves[n].sent = true
	}
}

// moving reports whether a key is being moved by some proxy, or may be.
func (w *world) moving(key int) bool {
	for i := range w.hosts {
		if w.hosts[i].joins || slices.ContainsFunc(w.hosts[i].moves, func(m attempt) bool { return m.key == key }) {
			return true
		}
	}
	return false
}

// copy returns a copy that shares nothing which changes.
func (w *world) copy() *world {
	c := *w
	c.disk = w.disk.copy()
	c.shown = maps.Clone(w.shown)
	c.s = &Service{opts: w.s.opts, store: c.disk, logSlack: w.s.logSlack, id: w.s.id,
		runs: map[runKey]*job{}, jobs: map[string]*job{}, watchers: map[*watcher]bool{}, watching: map[string]map[*watcher]bool{}, audiences: map[runKey]*audience{}}
	c.s.identified.Store(w.s.identified.Load())
	j := copyJob(w.job(), c.s)
	c.s.runs[j.key()], c.s.jobs[j.name] = j, j
	for i := range c.hosts {
		h := &c.hosts[i]
		h.displaced = copyOwners(&h.displaced)
		h.inbox, h.batches = slices.Clone(h.inbox), slices.Clone(h.batches)
		if h.watch != nil {
			h.watch = &watcher{host: h.watch.host, runs: h.watch.runs, events: make(chan *told, 64)}
			c.s.watchers[h.watch] = true
		}
	}
	return &c
}

func copyOwners(o *plan.Owners) (c plan.Owners) {
	for r := range o.All() {
		c.Set(r)
	}
	return c
}

func copyJob(old *job, s *Service) *job {
	j := newJob(s, old.key(), old.servers)
	j.version, j.mark, j.owners, j.held, j.stray = old.version, old.mark, copyOwners(&old.owners), old.held, old.stray
	j.snapshot, j.snapParts, j.snapMark, j.logged = old.snapshot, old.snapParts, old.snapMark, old.logged
	j.unsure, j.torn = old.unsure, old.torn
	j.recent = old.recent
	j.recent.changes = slices.Clone(old.recent.changes)
	for _, e := range old.epochs {
		c := *e
		c.info, c.open, c.reports, c.putOff = proto.CloneOf(e.info), maps.Clone(e.open), maps.Clone(e.reports), slices.Clone(e.putOff)
		c.waiting, c.busy = map[int32][]*api.MoveBatch{}, map[int32]busy{}
		for from, list := range e.waiting {
			c.waiting[from] = slices.Clone(list)
		}
		for from, has := range e.busy {
			c.busy[from] = busy{has.ranges, slices.Clone(has.batches)}
		}
		j.epochs = append(j.epochs, &c)
		if e == old.moving {
			j.moving = &c
		}
	}
	return j
}

var worldSeed = maphash.MakeSeed()

// digest returns what decides about all that can follow. Accounts, marks, versions and the order of
// what is recorded do not, nor does the copy of the owners that a proxy has.
func (w *world) digest() uint64 {
	d := digest{}
	b := w.budget
	for _, n := range []int{b.Propose, b.Apply, b.Restore, b.Rollback, b.Kill, b.Fail, b.Break, b.Dies, b.Refuse, int(w.owner[0]), int(w.owner[1])} {
		d.number(uint64(n))
	}
	for _, number := range slices.Sorted(maps.Keys(w.shown)) {
		d.number(number)
		d = append(d, w.shown[number]...)
	}
	d.disk(w.disk)
	d.job(w.job())
	for i := range w.hosts {
		d.host(&w.hosts[i])
	}
	return maphash.Bytes(worldSeed, d)
}

type digest []byte

func (d *digest) number(n uint64) { *d = binary.LittleEndian.AppendUint64(*d, n) }

func (d *digest) bits(all ...bool) {
	for _, b := range all {
		n := byte(0)
		if b {
			n = 1
		}
		*d = append(*d, n)
	}
}

func (d *digest) batches(all []*api.MoveBatch) {
	d.number(uint64(len(all)))
	for _, b := range all {
		d.number(b.GetBatch())
	}
}

func (d *digest) owners(o *plan.Owners) {
	for _, k := range worldKeys {
		d.number(uint64(o.Owner(k)))
	}
}

func (d *digest) disk(disk *cutDisk) {
	var logged plan.Owners
	for _, name := range slices.Sorted(maps.Keys(disk.entries)) {
		value := disk.entries[name]
		switch _, rest, _ := cutName(name); {
		case strings.HasPrefix(rest, "log/"):
			var c api.Change
			_ = proto.Unmarshal(value, &c) // as it was written
			ranges, _ := rangesOf(c.GetDisplaced())
			for _, r := range ranges {
				logged.Set(r)
			}
			continue
		case strings.HasPrefix(rest, "epoch/"):
			var e api.Epoch
			_ = proto.Unmarshal(value, &e)
			value = []byte{byte(e.GetState()), byte(e.GetRollsBack())}
		}
		*d = append(append(*d, name...), value...)
	}
	d.owners(&logged)
}

func (d *digest) job(j *job) {
	d.bits(j.held, j.unsure, j.torn, j.lost != nil)
	d.number(j.stray.epoch)
	d.number(uint64(j.stray.batches))
	d.owners(&j.owners)
	for _, e := range j.epochs {
		d.number(e.info.GetEpoch())
		d.number(uint64(e.info.GetState()))
		d.bits(e == j.moving)
		d.number(uint64(e.batches)<<32 | uint64(e.maybe))
		d.batches(e.unsent())
		d.batches(e.told())
		d.batches(e.putOff)
	}
}

func (d *digest) host(h *host) {
	d.bits(h.watch != nil, h.joins)
	d.batches(h.batches)
	d.number(uint64(len(h.inbox)))
	for _, e := range h.inbox {
		d.number(e.GetMove().GetBatch())
		d.number(e.GetCancel().GetBatch())
	}
	d.number(uint64(len(h.reports)))
	for _, r := range h.reports {
		d.number(r.GetBatch())
	}
	for _, m := range h.moves {
		d.number(m.batch.GetBatch()<<1 | uint64(m.key))
		d.bits(m.sent)
	}
}
