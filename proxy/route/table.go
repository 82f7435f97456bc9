package route

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// shardCount is how many parts a table's keys are divided into. A change copies
// the parts that it touches, and a word for each of the others.
const (
	shardBits  = 12
	shardCount = 1 << shardBits
)

// maxSingles is up to how many keys of a range are kept one by one; longer
// ranges are kept as such.
const maxSingles = 64

// Table is which server owns each displaced key of a job; all others are at
// home, with the server in whose PS-lite range they lie. A Table never changes:
// [Table.With] returns another one. The zero value is not usable; see
// [NewTable].
type Table struct {
	servers int
	keys    int
	shards  *[shardCount]shard // nil while there are no single keys
	// filter has a bit set for each single key, and for some that are not
	// there any more; it answers most questions about keys at home.
	filter      []uint64
	filterShift uint
	stale       int // keys that were taken out since the filter was made
	// ranges are those too long to be kept key by key, ascending; a single key
	// inside one has its own entry, at home or not.
	ranges []plan.Range
}

// shard is an open hash table of exactly as many slots as its keys need.
type shard struct {
	used  int
	slots []slot
}

// slot holds a key and its owner's rank plus 1; 0: nothing.
type slot struct {
	key   uint64
	owner int32
}

// NewTable returns the table of a job with so many servers in which all keys
// are at home.
func NewTable(servers int) *Table { return &Table{servers: servers} }

// Servers returns how many servers the job has.
func (t *Table) Servers() int { return t.servers }

// Displaced returns how many single keys and how many longer ranges of keys
// are listed.
func (t *Table) Displaced() (keys, ranges int) { return t.keys, len(t.ranges) }

// Empty reports whether all keys are at home.
func (t *Table) Empty() bool { return t.keys == 0 && len(t.ranges) == 0 }

// hash spreads keys; its high bits choose shard and filter bit, its low ones
// the slot.
func hash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// Owner returns the rank of the server that owns the key, displaced or not.
func (t *Table) Owner(key uint64) int32 {
	if t.shards != nil {
		h := hash(key)
		if t.filter[h>>t.filterShift]&(1<<(h>>(t.filterShift-6)&63)) != 0 {
			if owner := t.shards[h>>(64-shardBits)].find(key, h); owner != 0 {
				return owner - 1
			}
		}
	}
	if len(t.ranges) > 0 {
		if i := t.rangeFrom(key); i < len(t.ranges) && t.ranges[i].First <= key {
			return t.ranges[i].Owner
		}
	}
	return plan.HomeOf(key, t.servers)
}

// AppendOwners appends the owners of keys to dst. It is several times as fast as
// asking for one after the other where many of them are displaced: the memory
// of several entries is on its way at once.
func (t *Table) AppendOwners(dst []int32, keys pslite.Keys) []int32 {
	const ahead = 16
	var slots [ahead]*slot
	var guess [ahead]slot
	n := keys.Len()
	for at := 0; at < n; at += ahead {
		group := min(ahead, n-at)
		if t.shards != nil {
			for i := range group {
				h := hash(keys.At(at + i))
				slots[i] = nil
				if s := &t.shards[h>>(64-shardBits)]; s.used > 0 {
					slots[i] = &s.slots[start(h, len(s.slots))]
				}
			}
			for i, s := range slots[:group] {
				if guess[i].owner = 0; s != nil {
					guess[i] = *s
				}
			}
		}
		for i := range group {
			key := keys.At(at + i)
			if guess[i].owner != 0 && guess[i].key == key {
				dst = append(dst, guess[i].owner-1)
			} else {
				dst = append(dst, t.Owner(key))
			}
		}
	}
	return dst
}

// rangeFrom returns the place of the first range that does not end before key.
func (t *Table) rangeFrom(key uint64) int {
	return sort.Search(len(t.ranges), func(i int) bool { return t.ranges[i].Last >= key })
}

// start is where the search for a key begins, of so many slots.
func start(h uint64, slots int) int {
	return int(uint64(uint32(h)) * uint64(slots) >> 32)
}

func (s *shard) find(key, h uint64) int32 {
	if s.used == 0 {
		return 0
	}
	for i := start(h, len(s.slots)); ; {
		e := &s.slots[i]
		if e.key == key && e.owner != 0 || e.owner == 0 {
			return e.owner
		}
		if i++; i == len(s.slots) {
			i = 0
		}
	}
}

func (s *shard) put(key uint64, owner int32) {
	i := start(hash(key), len(s.slots))
	for s.slots[i].owner != 0 {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	s.slots[i] = slot{key, owner}
	s.used++
}

// Touches reports whether any of the keys of a keys frame, which are ascending,
// may be displaced. It is right where it says no; where it says yes the answer
// of [Table.Owner] counts.
func (t *Table) Touches(keys pslite.Keys) bool {
	if t.Empty() || keys.Len() == 0 {
		return false
	}
	if len(t.ranges) > 0 && t.rangeTouches(keys) {
		return true
	}
	if t.shards == nil {
		return false
	}
	filter, shift := t.filter, t.filterShift
	for b := []byte(keys); len(b) >= 8; b = b[8:] {
		key := binary.LittleEndian.Uint64(b)
		h := hash(key)
		if filter[h>>shift]&(1<<(h>>(shift-6)&63)) == 0 {
			continue
		}
		if t.shards[h>>(64-shardBits)].find(key, h) != 0 {
			return true
		}
	}
	return false
}

// rangeTouches reports whether a key lies in a range.
func (t *Table) rangeTouches(keys pslite.Keys) bool {
	n := keys.Len()
	at := 0
	for i := t.rangeFrom(keys.At(0)); i < len(t.ranges) && at < n; i++ {
		r := &t.ranges[i]
		at += sort.Search(n-at, func(j int) bool { return keys.At(at+j) >= r.First })
		if at < n && keys.At(at) <= r.Last {
			return true
		}
	}
	return false
}

// With returns the table in which the keys of the ranges have those owners;
// [plan.Home] brings them home. Later ranges overrule earlier ones.
func (t *Table) With(changes []plan.Range) *Table {
	n := *t
	b := builder{table: &n, singles: map[uint64]int32{}}
	for _, r := range changes {
		b.set(r)
	}
	b.finish()
	return &n
}

// builder collects changes of single keys, so that each shard is made once.
type builder struct {
	table   *Table
	singles map[uint64]int32 // owner + 1; 0: no entry
}

func (b *builder) set(r plan.Range) {
	if r.Len() > maxSingles {
		b.setRange(r)
		return
	}
	for k := r.First; ; k++ {
		owner := r.Owner
		if owner < 0 {
			owner = plan.HomeOf(k, b.table.servers)
		}
		b.singles[k] = owner + 1
		if k == r.Last {
			return
		}
	}
}

// setRange puts a long range in place, cutting those that it covers in part,
// and forgets the single keys in it.
func (b *builder) setRange(r plan.Range) {
	t := b.table
	var kept []plan.Range
	for _, old := range t.ranges {
		if old.Last < r.First || old.First > r.Last {
			kept = append(kept, old)
			continue
		}
		if old.First < r.First {
			kept = append(kept, plan.Range{Keys: plan.Keys{First: old.First, Last: r.First - 1}, Owner: old.Owner})
		}
		if old.Last > r.Last {
			kept = append(kept, plan.Range{Keys: plan.Keys{First: r.Last + 1, Last: old.Last}, Owner: old.Owner})
		}
	}
	if r.Owner >= 0 {
		kept = append(kept, r)
	}
	slices.SortFunc(kept, func(a, b plan.Range) int {
		if a.First < b.First {
			return -1
		}
		return 1
	})
	t.ranges = kept
	for k := range b.singles {
		if k >= r.First && k <= r.Last {
			delete(b.singles, k)
		}
	}
	if t.shards != nil {
		for i := range t.shards {
			for _, e := range t.shards[i].slots {
				if e.owner != 0 && e.key >= r.First && e.key <= r.Last {
					b.singles[e.key] = 0
				}
			}
		}
	}
}

// finish makes the shards that have changed.
func (b *builder) finish() {
	t := b.table
	if len(b.singles) == 0 {
		return
	}
	changed := map[uint64][]slot{}
	for k, owner := range b.singles {
		if owner != 0 && owner-1 == plan.HomeOf(k, t.servers) {
			if i := t.rangeFrom(k); i == len(t.ranges) || t.ranges[i].First > k {
				owner = 0 // at home, and nothing else says otherwise
			}
		}
		at := hash(k) >> (64 - shardBits)
		changed[at] = append(changed[at], slot{k, owner})
	}
	shards := new([shardCount]shard)
	if t.shards != nil {
		*shards = *t.shards
	}
	t.shards = shards
	var added []uint64
	for at, list := range changed {
		before := shards[at].used
		shards[at], added = remake(&shards[at], list, added)
		after := shards[at].used
		t.keys += after - before
		t.stale += max(0, before-after)
	}
	if t.keys == 0 {
		t.shards, t.filter, t.stale = nil, nil, 0
		return
	}
	t.refilter(added)
}

// remake returns the shard with changed slots, and adds the keys that it did
// not have to added.
func remake(old *shard, changes []slot, added []uint64) (shard, []uint64) {
	by := make(map[uint64]int32, len(changes))
	for _, c := range changes {
		by[c.key] = c.owner
	}
	kept := make([]slot, 0, old.used+len(changes))
	for _, e := range old.slots {
		if e.owner == 0 {
			continue
		}
		if owner, ok := by[e.key]; ok {
			delete(by, e.key)
			e.owner = owner
		}
		if e.owner != 0 {
			kept = append(kept, e)
		}
	}
	for key, owner := range by {
		if owner != 0 {
			kept = append(kept, slot{key, owner})
			added = append(added, key)
		}
	}
	n := len(kept)
	if n == 0 {
		return shard{}, added
	}
	s := shard{slots: make([]slot, n+n/2+2)}
	for _, e := range kept {
		s.put(e.key, e.owner)
	}
	return s, added
}

// refilter makes a filter of 16 bits a key or more, or adds keys to a copy of
// the one that is there.
func (t *Table) refilter(added []uint64) {
	want := uint(max(6, bits.Len(uint(t.keys*16-1)))) // log2 of the bits
	have := uint(0)
	if t.filter != nil {
		have = uint(bits.Len(uint(len(t.filter)*64 - 1)))
	}
	if have >= want && t.stale <= t.keys {
		t.filter = slices.Clone(t.filter)
		for _, k := range added {
			t.mark(hash(k))
		}
		return
	}
	want = max(want, shardBits) + 1
	t.filter, t.filterShift, t.stale = make([]uint64, 1<<(want-6)), 64-(want-6), 0
	for i := range t.shards {
		for _, e := range t.shards[i].slots {
			if e.owner != 0 {
				t.mark(hash(e.key))
			}
		}
	}
}

func (t *Table) mark(h uint64) {
	t.filter[h>>t.filterShift] |= 1 << (h >> (t.filterShift - 6) & 63)
}

// All calls yield for every entry: long ranges first, then single keys in no
// order, which overrule them; owners are ranks, never [plan.Home].
func (t *Table) All(yield func(plan.Range) bool) {
	for _, r := range t.ranges {
		if !yield(r) {
			return
		}
	}
	if t.shards == nil {
		return
	}
	for i := range t.shards {
		for _, e := range t.shards[i].slots {
			if e.owner != 0 && !yield(plan.Range{Keys: plan.One(e.key), Owner: e.owner - 1}) {
				return
			}
		}
	}
}
