package counts

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// A front gathers uses of keys before they are counted in leaves. Looking up a few keys in each
// of hundreds of leaves, and inserting a new key into one, costs far more than the counting
// itself. Here that is done once for all uses that have gathered.
//
// It has two stages. Lists that come again while they are remembered, as those of a pull, its
// answer and the push that follows do, are summed up as whole lists (lists). What is displaced
// from there is summed up by key and worker in a hash table (slots). When that is full, or
// before a query, its content is sorted and counted in the leaves (drain). Nothing is lost or
// rounded: every query counts everything first (Table.lock).
//
// Invariants: a list that waits is not counted in slots or leaves yet; a slot whose worker is
// not 0 is not counted in leaves yet; held is the sum of the capacities of the lists' keys;
// used counts the slots in use. All of it is guarded by Table.mu.
type front struct {
	lists []list
	held  int    // keys that lists have room for
	slots []slot // hash table with open addressing and linear probing; a power of two
	used  int    // slots in use
	most  int    // bound of used, and of held

	order   []placed // scratch of drain, like the fields that follow
	ends    []int
	sorted  []placed
	buckets []int32
	keys    []uint64
	sums    [][Planes]uint32
}

// list is a list of keys that one worker used, with what each of its keys gets.
type list struct {
	worker int
	keys   []uint64
	sums   Sums
	waits  bool // sums are not counted yet
}

// slot is what one worker did with one key. Amounts are 32 bits wide, to fit two slots in a
// cache line.
type slot struct {
	key    uint64
	worker uint32 // its index plus 1; 0: the slot is free
	_      uint32
	sums   [Planes]uint32
}

// placed is a slot in use: its key and its number.
type placed struct {
	key uint64
	at  int32
}

const (
	slotBytes = 32
	// frontShare bounds the front's memory: one part in so many of the table's for slots, and
	// about as much again for lists and scratch.
	frontShare = 32
	// maxSlots slots, 1 MiB, stay in a processor's cache.
	minSlots, maxSlots = 1 << 8, 1 << 15
	// shortList is the least number of keys of a list that is remembered as a list. For a
	// shorter one, the comparison costs as much as the counting.
	shortList = 4
	// denseShare is how many keys a leaf, on average, a list must have to be counted in the
	// leaves at once, since it would gain nothing by waiting. So is a list that would fill half
	// of the slots by itself.
	denseShare = 16
)

// frontSlots returns the number of slots for a table of so many bytes; 0: it has no front.
func frontSlots(memory int) int {
	slots := maxSlots
	for slots > 0 && slots*slotBytes > memory/frontShare {
		slots /= 2
	}
	if slots < minSlots {
		return 0
	}
	return slots
}

// newFront returns an empty front; slots is a power of two. It is filled to three quarters at
// most, which keeps probing short.
func newFront(slots int) *front {
	return &front{lists: make([]list, max(slots/128, 16)), slots: make([]slot, slots), most: slots / 4 * 3}
}

// bytes returns the most memory that the front can take. It is reserved in full from the start,
// so that filling the front never makes the table fold.
func (f *front) bytes() int {
	if f == nil {
		return 0
	}
	const scratch = 2*16 + 4 + 8 + 4*Planes // of each used slot
	return slotBytes*len(f.slots) + (scratch+8)*f.most + 64*len(f.lists)
}

// gather takes a batch of keys that is no run.
//
// A list is found by a hash of its ends and length and compared in full, which is far cheaper
// than counting its keys.
func (t *Table) gather(b *Batch) {
	if t.front == nil {
		slots := frontSlots(t.opts.MemoryBytes)
		if slots == 0 {
			t.spread(b)
			return
		}
		t.front = newFront(slots)
	}
	f := t.front
	n := len(b.Keys)
	if b.Lens != nil || n < shortList || n > f.most {
		t.pass(b)
		return
	}
	l := &f.lists[listHash(b.Worker, b.Keys)%uint64(len(f.lists))]
	if l.worker == b.Worker && slices.Equal(l.keys, b.Keys) {
		l.sums.Add(b.Each)
		l.waits, t.waiting = true, true
		return
	}
	// Another list has this place: it is displaced into the slots.
	t.giveUp(l)
	if f.held -= cap(l.keys); f.held+n > f.most { // no room: all lists are counted and released
		l.keys = nil
		t.countLists()
		for i := range f.lists {
			f.lists[i].keys = nil
		}
		f.held = 0
	}
	l.keys = append(l.keys[:0], b.Keys...)
	f.held += cap(l.keys)
	l.worker, l.sums = b.Worker, b.Each
	l.waits, t.waiting = true, true
}

// listHash reads the ends of the list only. Lists that differ in the middle share a place and
// displace each other, which is slow but correct.
func listHash(worker int, keys []uint64) uint64 {
	h := uint64(worker)*0x9e3779b97f4a7c15 ^ keys[0] ^ keys[len(keys)-1]*0x94d049bb133111eb ^ uint64(len(keys))
	return h * 0xbf58476d1ce4e5b9 >> 48
}

// giveUp counts what a list has gathered. Its keys stay, so the list is recognized when it
// comes again.
func (t *Table) giveUp(l *list) {
	if !l.waits {
		return
	}
	b := Batch{Worker: l.worker, Keys: l.keys, Each: l.sums}
	l.sums, l.waits = Sums{}, false
	t.pass(&b)
}

// countLists counts what all lists have gathered.
func (t *Table) countLists() {
	for i := range t.front.lists {
		t.giveUp(&t.front.lists[i])
	}
}

// pass adds a batch to the slots, or to the leaves directly if it is dense or its amounts do
// not fit a slot.
func (t *Table) pass(b *Batch) {
	each, fits := narrow(b)
	// Amounts above 2^31 would leave no room for a second use in a slot.
	if !fits || len(b.Keys) >= min(denseShare*len(t.leaves), t.front.most/2) {
		t.spread(b)
		return
	}
	t.waiting = true
	for i, k := range b.Keys {
		if b.Lens != nil {
			each[b.LenPlane] = uint32(b.Each[b.LenPlane] + b.lenBytes(i))
		}
		s := t.front.slot(k, uint32(b.Worker)+1)
		// After draining, all slots are free, so there is one for this key.
		if s == nil || s.full(&each) {
			t.later(t.drain)
			s = t.front.slot(k, uint32(b.Worker)+1)
		}
		for p := range s.sums {
			s.sums[p] += each[p]
		}
	}
}

// slot returns the slot of a key and a worker (its index plus 1), taking a free one if there is
// none; nil if the table is full.
func (f *front) slot(key uint64, worker uint32) *slot {
	mask := uint64(len(f.slots) - 1)
	at := (key ^ uint64(worker)*0x94d049bb133111eb) * 0x9e3779b97f4a7c15 >> 32 & mask
	for {
		s := &f.slots[at]
		switch {
		case s.key == key && s.worker == worker:
			return s
		case s.worker != 0:
			at = (at + 1) & mask
		case f.used >= f.most:
			return nil
		default:
			s.key, s.worker = key, worker
			f.used++
			return s
		}
	}
}

// full reports whether adding each would overflow one of the slot's amounts. It has one branch
// for all of them.
func (s *slot) full(each *[Planes]uint32) bool {
	carry := uint64(0)
	for p := range s.sums {
		carry |= uint64(s.sums[p]) + uint64(each[p])
	}
	return carry > math.MaxUint32
}

// narrow returns what each key of the batch gets, without its lens, in 32 bits, and whether the
// amounts, with the lens, fit a slot.
func narrow(b *Batch) (each [Planes]uint32, fits bool) {
	all := uint64(0)
	for p, n := range b.Each {
		all |= n
		each[p] = uint32(n)
	}
	if b.Lens != nil {
		longest := uint64(max(slices.Max(b.Lens), 0))
		fits = b.LenUnit <= math.MaxInt32 && longest*b.LenUnit <= math.MaxInt32
	}
	return each, all <= math.MaxInt32 && (b.Lens == nil || fits)
}

// drain counts what the slots have gathered in the leaves, worker by worker, in ascending order
// of keys, and empties them.
func (t *Table) drain() {
	f := t.front
	if f.used == 0 {
		return
	}
	f.group()
	from := 0
	for worker, end := range f.ends {
		some := f.order[from:end]
		if from = end; len(some) == 0 {
			continue
		}
		// Leaves are walked in ascending order, so sorted keys make one pass.
		f.sort(some)
		f.keys, f.sums = f.keys[:0], f.sums[:0]
		for _, p := range some {
			f.keys, f.sums = append(f.keys, p.key), append(f.sums, f.slots[p.at].sums)
		}
		t.spread(&Batch{Worker: worker, Keys: f.keys, Ascending: true, sums: f.sums})
	}
	// A megabyte at most, and cheaper than clearing slot by slot.
	clear(f.slots)
	f.used = 0
}

// group puts the slots in use into f.order, grouped by worker (a counting sort). The slots of
// worker i end at f.ends[i].
func (f *front) group() {
	f.ends = f.ends[:0]
	for i := range f.slots {
		if w := int(f.slots[i].worker); w > 0 {
			for w >= len(f.ends) {
				f.ends = append(f.ends, 0)
			}
			f.ends[w]++ // counted at index worker+1, so the prefix sums are the starts
		}
	}
	for w := 1; w < len(f.ends); w++ {
		f.ends[w] += f.ends[w-1]
	}
	f.order = slices.Grow(f.order[:0], f.used)[:f.used]
	for i := range f.slots {
		if w := int(f.slots[i].worker); w > 0 {
			f.order[f.ends[w-1]] = placed{f.slots[i].key, int32(i)}
			f.ends[w-1]++
		}
	}
	f.ends = f.ends[:len(f.ends)-1]
}

func comparePlaced(a, b placed) int { return cmp.Compare(a.key, b.key) }

// sort sorts by key. Keys are usually hashed, and so evenly spread, or close together. They are
// distributed into about a quarter as many buckets, of equal width, and each bucket is sorted
// by itself, which takes linear time as long as few buckets get many keys.
func (f *front) sort(some []placed) {
	if len(some) < 64 {
		slices.SortFunc(some, comparePlaced)
		return
	}
	low, high := some[0].key, some[0].key
	for _, p := range some {
		low, high = min(low, p.key), max(high, p.key)
	}
	shift := max(bits.Len64(high-low)-bits.Len(uint(len(some)/4)), 0)
	f.buckets = slices.Grow(f.buckets[:0], int((high-low)>>shift)+1)[:(high-low)>>shift+1]
	clear(f.buckets)
	for _, p := range some {
		f.buckets[(p.key-low)>>shift]++
	}
	sum := int32(0)
	for i, n := range f.buckets {
		f.buckets[i], sum = sum, sum+n
	}
	f.sorted = append(f.sorted[:0], some...)
	for _, p := range f.sorted {
		at := &f.buckets[(p.key-low)>>shift]
		some[*at] = p
		*at++
	}
	from := 0
	for _, end := range f.buckets {
		sortFew(some[from:end])
		from = int(end)
	}
}

// sortFew sorts a bucket: by insertion if it is small, as nearly all are.
func sortFew(some []placed) {
	if len(some) > 24 {
		slices.SortFunc(some, comparePlaced)
		return
	}
	for i := 1; i < len(some); i++ {
		p, at := some[i], i
		for ; at > 0 && some[at-1].key > p.key; at-- {
			some[at] = some[at-1]
		}
		some[at] = p
	}
}
