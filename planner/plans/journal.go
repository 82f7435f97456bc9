package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// Entries of the store, all below "job/NAME/run/RUN/", or "job/NAME/" for plans
// of runs that nobody has named, numbers in hexadecimal:
//
//	head             see head
//	snap/V/PART      the displaced keys at version V: api.Displaced
//	log/V            the change that made version V: api.Change
//	epoch/E          a plan's account: api.Epoch
//	move/B           a batch of epoch B>>24: api.MoveBatch
//
// Truth is the snapshot that head names and the log after it. Changes older than
// the snapshot, and parts of snapshots that head does not name, are leftovers of an
// interrupted write.

// head is the entry that makes a run's other entries count. It is JSON, so that people can read it.
type head struct {
	Format    int    `json:"format"` // 1
	Servers   int    `json:"servers"`
	Held      bool   `json:"held,omitempty"`
	Snapshot  uint64 `json:"snapshot,omitempty"`
	SnapParts int    `json:"snap_parts,omitempty"`
	Mark      uint64 `json:"mark,omitempty"` // of the snapshot's version
	// Stores are the earlier stores of the run's lineage (job.stores).
	Stores []string `json:"stores,omitempty"`
}

const headFormat = 1

// logSlack is how many ranges the log may have beyond twice the number of displaced ranges. So the
// cost of snapshots, spread over the changes, is constant, and reading a large run takes at most
// some three times as long as reading its snapshot.
const logSlack = 1 << 16

// prefix begins the names of all entries of the run.
func (j *job) prefix() string {
	if j.run == "" {
		return "job/" + j.name
	}
	return fmt.Sprintf("job/%s/run/%s", j.name, j.run)
}

// objectName returns the name of an entry with a number. The number is fixed width, so that names
// sort by it.
func (j *job) objectName(kind string, number uint64) string {
	return fmt.Sprintf("%s/%s/%016x", j.prefix(), kind, number)
}
func (j *job) headName() string              { return j.prefix() + "/head" }
func (j *job) logName(version uint64) string { return j.objectName("log", version) }
func (j *job) epochName(e uint64) string     { return j.objectName("epoch", e) }
func (j *job) moveName(batch uint64) string  { return j.objectName("move", batch) }
func (j *job) snapName(version uint64, part int) string {
	return fmt.Sprintf("%s/%06x", j.objectName("snap", version), part)
}

// cutName splits an entry's name into the run and the rest, which begins with the kind. ok is false
// for entries of other parts of the planner. It searches from the end, since a job's name is an
// address from the network and may have slashes.
func cutName(name string) (k runKey, rest string, ok bool) {
	name, ok = strings.CutPrefix(name, "job/")
	if !ok {
		return k, "", false
	}
	for _, kind := range []string{"/head", "/snap/", "/log/", "/epoch/", "/move/"} {
		at := strings.LastIndex(name, kind)
		if at < 0 {
			continue
		}
		k.job, rest = name[:at], name[at+1:]
		if cut := strings.LastIndex(k.job, "/run/"); cut >= 0 {
			if run := plan.Run(k.job[cut+len("/run/"):]); run.Valid() {
				k.job, k.run = k.job[:cut], run
			}
		}
		return k, rest, true
	}
	return k, "", false
}

// A nameCutter is cutName for many names in order. Names that differ only after their last slash are
// cut alike, but for a head, whose kind comes there.
type nameCutter struct {
	dir  string // with the slash
	key  runKey
	rest string // of dir
}

func (c *nameCutter) cut(name string) (k runKey, rest string, ok bool) {
	dir := name[:strings.LastIndexByte(name, '/')+1]
	if c.dir != "" && dir == c.dir && !strings.HasPrefix(name[len(dir):], "head") {
		return c.key, c.rest + name[len(dir):], true
	}
	k, rest, ok = cutName(name)
	if c.dir = ""; ok && len(rest) > len(name)-len(dir) {
		c.dir, c.key, c.rest = dir, k, rest[:len(rest)-(len(name)-len(dir))]
	}
	return k, rest, ok
}

// storable reports whether the entries of a run can be told from those of all others. A job's name is
// a text from the network: the entries of one like a/run/RUN would be those of a's run.
func storable(k runKey) bool {
	j := &job{name: k.job, run: k.run}
	for _, name := range []string{j.headName(), j.snapName(1, 0), j.logName(1), j.epochName(1), j.moveName(1)} {
		if of, _, ok := cutName(name); !ok || of != k {
			return false
		}
	}
	return true
}

// protoEntry returns an entry with an encoded message. An empty message is an empty value, not nil,
// which would remove the entry.
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

// headEntry returns the head as it is in memory now, but with the given held. It is written last
// among the entries that it refers to.
func (j *job) headEntry(held bool) store.Entry {
	h := head{Format: headFormat, Servers: j.servers, Held: held, Snapshot: j.snapshot, SnapParts: j.snapParts, Mark: j.snapMark, Stores: j.stores}
	value, err := json.Marshal(h)
	if err != nil {
		panic(err) // numbers and strings
	}
	return store.Entry{Name: j.headName(), Value: value}
}

// movesGone returns the removal of all batches of an epoch.
func (j *job) movesGone(e *epoch) []store.Entry {
	entries := make([]store.Entry, max(e.batches, e.maybe))
	for i := range entries {
		entries[i].Name = j.moveName(e.info.GetEpoch()<<24 | uint64(i))
	}
	return entries
}

// readMoves returns all batches of an epoch from the store, which it scans as a whole.
func (j *job) readMoves(ctx context.Context, epoch uint64) ([]*api.MoveBatch, error) {
	var batches []*api.MoveBatch
	err := j.service.store.Each(ctx, func(name string, value []byte) error {
		k, rest, ok := cutName(name)
		if !ok || k != j.key() || !strings.HasPrefix(rest, "move/") {
			return nil
		}
		b := &api.MoveBatch{}
		if err := proto.Unmarshal(value, b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if b.GetEpoch() == epoch {
			batches = append(batches, b)
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(err)
	}
	return batches, nil
}

// compact writes a new snapshot if the log has grown long. If that fails the log simply continues,
// and the next change tries again.
func (j *job) compact(ctx context.Context) {
	if j.logged < j.service.logSlack+2*j.owners.Ranges() {
		return
	}
	_ = j.writeSnapshot(ctx, j.version)
}

// writeSnapshot writes the owners as a snapshot at j.version and removes the one before and the
// log, which has changes up to version logged. The caller holds j.mu.
//
// The order matters, because a store may write only some of the entries: first the parts of the new
// snapshot, which nothing refers to yet; then the head, which switches to it; then the removals,
// which a crash may leave undone.
func (j *job) writeSnapshot(ctx context.Context, logged uint64) error {
	var entries []store.Entry
	var ranges []plan.Range
	part := 0
	flush := func() error {
		entry, err := protoEntry(j.snapName(j.version, part), displaced(ranges))
		entries = append(entries, entry)
		part, ranges = part+1, ranges[:0]
		return err
	}
	for r := range j.owners.All() {
		if len(ranges) == pieceRanges {
			if err := flush(); err != nil {
				return err
			}
		}
		ranges = append(ranges, r)
	}
	if err := flush(); err != nil {
		return err
	}
	old, oldParts, oldMark := j.snapshot, j.snapParts, j.snapMark
	j.snapshot, j.snapParts, j.snapMark = j.version, part, j.mark
	entries = append(entries, j.headEntry(j.held))
	for i := range oldParts {
		entries = append(entries, store.Entry{Name: j.snapName(old, i)})
	}
	for v := old + 1; v <= logged; v++ {
		entries = append(entries, store.Entry{Name: j.logName(v)})
	}
	if err := j.write(ctx, entries); err != nil {
		j.snapshot, j.snapParts, j.snapMark, j.unsure = old, oldParts, oldMark, true
		return err
	}
	j.logged = 0
	return nil
}
