package route

import (
	"maps"
	"slices"
	"sort"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// maxSingles is the number of keys up to which a range is stored key by key; longer ranges are
// stored as such.
const maxSingles = 64

// MaxServers is the largest number of servers that a table supports: owners from plan.FirstParted
// on mean keys in parts.
const MaxServers = int(plan.FirstParted)

// Table maps each displaced key of a job to its owner. All other keys are at home, with the server
// in whose PS-lite range they lie. The zero value is not usable; see [NewTable].
//
// Singles overrule ranges, and ranges overrule home. ranges are disjoint, ascending and never owned
// by a negative rank. Lookups do not change a table, so any number of goroutines may read it while
// nobody calls Set.
type Table struct {
	servers int
	version uint64 // incremented by each Set; verdicts of another version are stale
	singles singles
	// ranges are those too long to be kept key by key, ascending; a single key
	// inside one has its own entry, at home or not.
	ranges []plan.Range
	parted bool // some key has had parts for an owner
	// inParts has the changes that gave keys parts, mostInParts at most, also those that were undone since.
	inParts map[plan.Range]bool
}

// mostInParts bounds Table.inParts.
const mostInParts = 4096

// NewTable returns the table of a job with n servers, at most [MaxServers], in
// which all keys are at home.
func NewTable(servers int) *Table { return &Table{servers: servers} }

// Clone returns a deep copy.
func (t *Table) Clone() *Table {
	return &Table{servers: t.servers, singles: t.singles.clone(), ranges: slices.Clone(t.ranges), parted: t.parted, inParts: maps.Clone(t.inParts)}
}

// Servers returns the number of servers of the job.
func (t *Table) Servers() int { return t.servers }

// Displaced returns the number of single keys and of longer ranges that are stored.
func (t *Table) Displaced() (keys, ranges int) { return t.singles.n, len(t.ranges) }

// Empty reports whether all keys are at home.
func (t *Table) Empty() bool { return t.singles.n == 0 && len(t.ranges) == 0 }

// Owner returns the rank of the server that owns the key, displaced or not; for a key in parts it
// returns the owner that [plan.Parted] makes.
func (t *Table) Owner(key uint64) int32 {
	if owner, ok := t.singles.get(key); ok {
		return owner
	}
	if r := t.rangeOf(key); r != nil {
		return r.Owner
	}
	return plan.HomeOf(key, t.servers)
}

// AppendOwners appends the owner of each key to dst, in the order of keys. Ascending keys, as those
// of a keys frame, are looked up many times as fast as by [Table.Owner]: consecutive keys mostly
// share a range, and singles are looked up in strides.
func (t *Table) AppendOwners(dst []int32, keys pslite.Keys) []int32 {
	from := len(dst)
	dst = t.appendBroad(slices.Grow(dst, keys.Len()), keys)
	if t.singles.n > 0 {
		t.singles.overrule(dst[from:], keys)
	}
	return dst
}

// appendBroad appends the owners according to ranges and home, without singles. It reuses the span
// of the previous key, so ascending keys cost one search for each span.
func (t *Table) appendBroad(dst []int32, keys pslite.Keys) []int32 {
	span := plan.Range{Keys: plan.Keys{First: 1}} // of no key
	for i := range keys.Len() {
		key := keys.At(i)
		if key < span.First || key > span.Last {
			span = t.broad(key)
		}
		dst = append(dst, span.Owner)
	}
	return dst
}

// broad returns the owner of a key according to ranges and home, with the largest range of keys
// around it for which it found the same.
func (t *Table) broad(key uint64) plan.Range {
	owner := plan.HomeOf(key, t.servers)
	span := plan.Range{Keys: plan.HomeRange(owner, t.servers), Owner: owner}
	i := t.rangeFrom(key)
	if i < len(t.ranges) {
		if r := t.ranges[i]; r.First <= key {
			return r
		}
		span.Last = min(span.Last, t.ranges[i].First-1)
	}
	if i > 0 {
		span.First = max(span.First, t.ranges[i-1].Last+1)
	}
	return span
}

// rangeFrom returns the index of the first range that does not end before key.
func (t *Table) rangeFrom(key uint64) int {
	return sort.Search(len(t.ranges), func(i int) bool { return t.ranges[i].Last >= key })
}

// rangeOf returns the range that a key lies in, or nil.
func (t *Table) rangeOf(key uint64) *plan.Range {
	if i := t.rangeFrom(key); i < len(t.ranges) && t.ranges[i].First <= key {
		return &t.ranges[i]
	}
	return nil
}

// Touches reports whether any of the ascending keys may be displaced. False is exact; true may be
// wrong, since a range may contain single keys that are at home, and [Table.Owner] decides.
func (t *Table) Touches(keys pslite.Keys) bool {
	if len(t.ranges) > 0 && t.rangeTouches(keys) {
		return true
	}
	return t.singles.n > 0 && t.singles.hasAny(keys)
}

// rangeTouches reports whether a key lies in a range. It walks ranges and keys together, skipping
// keys by galloping: both lists ascend.
func (t *Table) rangeTouches(keys pslite.Keys) bool {
	n := keys.Len()
	if n == 0 {
		return false
	}
	at := 0
	for i := t.rangeFrom(keys.At(0)); i < len(t.ranges) && at < n; i++ {
		r := &t.ranges[i]
		at += gallop(n-at, func(j int) bool { return keys.At(at+j) >= r.First })
		if at < n && keys.At(at) <= r.Last {
			return true
		}
	}
	return false
}

// Set changes the owners of the keys in the ranges; [plan.Home] brings keys home. Later ranges
// overrule earlier ones.
func (t *Table) Set(changes []plan.Range) {
	t.version++
	for _, r := range changes {
		if plan.PartsOf(r.Owner) > 0 {
			t.noteParts(r)
		}
		if r.Len() > maxSingles {
			t.setRange(r)
			continue
		}
		for k := r.First; ; k++ {
			t.setSingle(k, r.Owner)
			if k == r.Last {
				break
			}
		}
	}
}

// noteParts notes that keys are given parts.
func (t *Table) noteParts(r plan.Range) {
	t.parted = true
	if t.inParts == nil {
		t.inParts = map[plan.Range]bool{}
	}
	if len(t.inParts) < mostInParts {
		t.inParts[r] = true
	}
}

// InParts returns the keys that are in parts or have been, by owner, in no order: the changes that made them so, the
// first mostInParts.
func (t *Table) InParts() []plan.Range { return slices.Collect(maps.Keys(t.inParts)) }

// setSingle stores the owner of one key, where it differs from what ranges and home say.
func (t *Table) setSingle(key uint64, owner int32) {
	home := plan.HomeOf(key, t.servers)
	if owner < 0 {
		owner = home
	}
	if owner == home && t.rangeOf(key) == nil {
		t.singles.remove(key) // at home, and nothing else says otherwise
		return
	}
	t.singles.set(key, owner)
}

// setRange stores a long range. It cuts the ranges that it overlaps, and removes the single keys
// inside, which are older. Scanning all singles for those is linear, but ranges this long are rare.
func (t *Table) setRange(r plan.Range) {
	first := t.rangeFrom(r.First)
	last := first
	var pieces []plan.Range
	for ; last < len(t.ranges) && t.ranges[last].First <= r.Last; last++ {
		if old := t.ranges[last]; old.First < r.First {
			pieces = append(pieces, plan.Range{Keys: plan.Keys{First: old.First, Last: r.First - 1}, Owner: old.Owner})
		}
	}
	if r.Owner >= 0 {
		pieces = append(pieces, r)
	}
	if last > first && t.ranges[last-1].Last > r.Last {
		old := t.ranges[last-1]
		pieces = append(pieces, plan.Range{Keys: plan.Keys{First: r.Last + 1, Last: old.Last}, Owner: old.Owner})
	}
	t.ranges = slices.Replace(t.ranges, first, last, pieces...)
	var covered []uint64
	for k := range t.singles.all() {
		if k >= r.First && k <= r.Last {
			covered = append(covered, k)
		}
	}
	for _, k := range covered {
		t.singles.remove(k)
	}
}

// All calls yield for every entry: ranges first, then single keys in no order, which overrule the
// ranges. Owners are ranks or owners of parts, never [plan.Home], and can also be a key's home,
// where a range around it is displaced.
func (t *Table) All(yield func(plan.Range) bool) {
	for _, r := range t.ranges {
		if !yield(r) {
			return
		}
	}
	for k, owner := range t.singles.all() {
		if !yield(plan.Range{Keys: plan.One(k), Owner: owner}) {
			return
		}
	}
}
