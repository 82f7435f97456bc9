package route

import (
	"slices"
	"sort"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// maxSingles is up to how many keys of a range are kept one by one; longer
// ranges are kept as such.
const maxSingles = 64

// MaxServers is for how many servers a table can be.
const MaxServers = int(plan.FirstParted)

// Table is which server owns each displaced key of a job; all others are at
// home, with the server in whose PS-lite range they lie. The zero value is not
// usable; see [NewTable].
type Table struct {
	servers int
	version uint64 // counts changes
	singles singles
	// ranges are those too long to be kept key by key, ascending; a single key
	// inside one has its own entry, at home or not.
	ranges []plan.Range
	parted bool // some key has had parts for an owner
}

// NewTable returns the table of a job with n servers, at most [MaxServers], in
// which all keys are at home.
func NewTable(servers int) *Table { return &Table{servers: servers} }

// Clone returns a table of its own that says the same.
func (t *Table) Clone() *Table {
	return &Table{servers: t.servers, singles: t.singles.clone(), ranges: slices.Clone(t.ranges), parted: t.parted}
}

// Servers returns how many servers the job has.
func (t *Table) Servers() int { return t.servers }

// Displaced returns how many single keys and how many longer ranges of keys
// are listed.
func (t *Table) Displaced() (keys, ranges int) { return t.singles.n, len(t.ranges) }

// Empty reports whether all keys are at home.
func (t *Table) Empty() bool { return t.singles.n == 0 && len(t.ranges) == 0 }

// Owner returns the rank of the server that owns the key, displaced or not, or that the
// key is in parts (see [plan.Parted]).
func (t *Table) Owner(key uint64) int32 {
	if owner, ok := t.singles.get(key); ok {
		return owner
	}
	if r := t.rangeOf(key); r != nil {
		return r.Owner
	}
	return plan.HomeOf(key, t.servers)
}

// AppendOwners appends the owners of keys to dst. It is fastest where the keys
// ascend, as those of a keys frame do, and many times as fast as asking for one
// after the other.
func (t *Table) AppendOwners(dst []int32, keys pslite.Keys) []int32 {
	from := len(dst)
	dst = t.appendBroad(slices.Grow(dst, keys.Len()), keys)
	if t.singles.n > 0 {
		t.singles.overrule(dst[from:], keys)
	}
	return dst
}

// appendBroad appends the owners that keys have by ranges and home.
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

// broad returns the owner of a key by ranges and home, and keys around it that
// have the same one.
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

// rangeFrom returns the place of the first range that does not end before key.
func (t *Table) rangeFrom(key uint64) int {
	return sort.Search(len(t.ranges), func(i int) bool { return t.ranges[i].Last >= key })
}

// rangeOf returns the range that a key lies in, nil where it lies in none.
func (t *Table) rangeOf(key uint64) *plan.Range {
	if i := t.rangeFrom(key); i < len(t.ranges) && t.ranges[i].First <= key {
		return &t.ranges[i]
	}
	return nil
}

// Touches reports whether any of the keys of a keys frame, which are ascending,
// may be displaced. It is right where it says no; where it says yes the answer
// of [Table.Owner] counts.
func (t *Table) Touches(keys pslite.Keys) bool {
	if len(t.ranges) > 0 && t.rangeTouches(keys) {
		return true
	}
	return t.singles.n > 0 && t.singles.hasAny(keys)
}

// rangeTouches reports whether a key lies in a range.
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

// Set gives the keys of the ranges those owners; [plan.Home] brings them home.
// Later ranges overrule earlier ones.
func (t *Table) Set(changes []plan.Range) {
	t.version++
	for _, r := range changes {
		t.parted = t.parted || plan.PartsOf(r.Owner) > 0
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

// setRange puts a long range in place, cutting those that it covers in part,
// and forgets the single keys in it.
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

// All calls yield for every entry: long ranges first, then single keys in no
// order, which overrule them; owners are ranks, never [plan.Home].
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
