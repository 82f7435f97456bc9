package stream

// A table keeps what is known of features, by id, in memory that is allocated once. It is a hash
// table with open addressing and linear probing, in which slots are ordered by the ids' hashes, so
// that entries can be dropped in place (retainFeatures). Each slot has some words and some small
// counters, whose meaning is the caller's.
//
// Invariant: at least one slot is free, which ends every search.
type table struct {
	// By slot, id+1, or 0 if it is free. Ids are at most 2^63.
	ids []uint64
	// By slot, how often the feature was added; it saturates.
	seen     []uint32
	words    []uint64 // perSlot words a slot
	counts   []uint8  // counters a slot
	perSlot  int
	counters int
	used     int
	// How many features were dropped to make room.
	lost int64
}

// slotBytes returns the memory of a slot with that many words and counters.
func slotBytes(words, counters int) int64 { return 8 + 4 + 8*int64(words) + int64(counters) }

// newTable allocates a table.
func newTable(slots int64, words, counters int) *table {
	return &table{
		ids: make([]uint64, slots), seen: make([]uint32, slots),
		words: make([]uint64, slots*int64(words)), counts: make([]uint8, slots*int64(counters)),
		perSlot: words, counters: counters,
	}
}

func (t *table) bytes() int64 { return int64(len(t.ids)) * slotBytes(t.perSlot, t.counters) }

// full reports whether no further feature should be added: beyond seven eighths searches become
// long.
func (t *table) full() bool { return t.used >= len(t.ids)/8*7 }

// hash is the finalizer of MurmurHash3 (Appleby, public domain).
func hash(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// home returns the slot at which the search for id starts. It ascends with the hash, on which
// retainFeatures relies.
func (t *table) home(id uint64) int {
	return int(hash(id) >> 32 * uint64(len(t.ids)) >> 32)
}

// find returns the slot of id, or -1.
func (t *table) find(id uint64) int {
	for s := t.home(id); ; {
		switch t.ids[s] {
		case id + 1:
			return s
		case 0:
			return -1
		}
		if s++; s == len(t.ids) {
			s = 0
		}
	}
}

// add returns the slot of id, a new one if it has none, and counts it. The table must not be full.
func (t *table) add(id uint64) int {
	s := t.home(id)
	for t.ids[s] != 0 && t.ids[s] != id+1 {
		if s++; s == len(t.ids) {
			s = 0
		}
	}
	if t.ids[s] == 0 {
		t.ids[s] = id + 1
		t.used++
	}
	if t.seen[s]+1 != 0 {
		t.seen[s]++
	}
	return s
}

// wordsOf returns the words of a slot, countsOf its counters. Both are views into the table.
func (t *table) wordsOf(s int) []uint64 { return t.words[s*t.perSlot : (s+1)*t.perSlot] }

func (t *table) countsOf(s int) []uint8 { return t.counts[s*t.counters : (s+1)*t.counters] }

// retainFeatures drops the features for which stays returns false. The others may move to slots
// nearer to their homes, so slot numbers are invalid afterwards. It visits the slots in the order
// of probing, from one that was free, so that an entry never moves to a slot that is visited later.
func (t *table) retainFeatures(stays func(slot int) bool) {
	free := 0 // the order of hashes starts over after a free slot
	for t.ids[free] != 0 {
		free++
	}
	for i := 1; i <= len(t.ids); i++ {
		s := (free + i) % len(t.ids)
		if t.ids[s] == 0 {
			continue
		}
		if !stays(s) {
			t.clear(s)
			t.used--
			t.lost++
			continue
		}
		// What stood between home and here may have gone.
		to := t.home(t.ids[s] - 1)
		for to != s && t.ids[to] != 0 {
			if to++; to == len(t.ids) {
				to = 0
			}
		}
		if to != s {
			t.ids[to], t.seen[to] = t.ids[s], t.seen[s]
			copy(t.wordsOf(to), t.wordsOf(s))
			copy(t.countsOf(to), t.countsOf(s))
			t.clear(s)
		}
	}
}

func (t *table) clear(s int) {
	t.ids[s], t.seen[s] = 0, 0
	clear(t.wordsOf(s))
	clear(t.countsOf(s))
}

// forgetRare drops the features that were seen least often, until less than three quarters of the
// table are used.
func (t *table) forgetRare() {
	// Doubling bounds the number of scans of the table; one after the other would take thousands
	// for popular features.
	for least := uint32(1); t.used >= len(t.ids)/4*3; least *= 2 {
		t.retainFeatures(func(s int) bool { return t.seen[s] > least })
	}
}
