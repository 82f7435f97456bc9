package route

import (
	"iter"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// singles is a map from keys to owners, made for lookups of whole lists of keys: an extendible hash
// table (Fagin et al. 1979) whose buckets are one cache line each, behind a Bloom filter that fits
// into a core's own cache for a million keys.
//
// Lookups are bound by memory latency, so they are arranged to have many cache misses outstanding:
// no branch depends on memory that has not been read yet, and a stride of keys is hashed, filtered
// and then read in separate loops. Inserting and removing change one segment at a time, so no
// request waits for a rehash of the whole table.
//
// The zero value is empty.
type singles struct {
	n int
	// segments has 2^depth entries, indexed by the first depth bits of a key's hash. A segment
	// whose own depth is smaller is the same slice in several consecutive entries.
	segments []segment
	depth    uint
	filter   filter
}

// hash mixes a key's bits by a 128-bit product. The leading bits select segment and filter word,
// the middle ones (16 to 47) the bucket, and the lowest twelve the bits in the filter's word.
func hash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// segment returns the segment of keys with that hash. The shift is split so that depth 0 needs no
// branch: a shift by 64 would be masked.
func (m *singles) segment(h uint64) segment { return m.segments[h>>1>>((63-m.depth)&63)] }

// get returns a key's owner. Most keys are not displaced and end at the filter.
func (m *singles) get(key uint64) (owner int32, ok bool) {
	if m.n == 0 {
		return 0, false
	}
	h := hash(key)
	if !m.filter.has(h) {
		return 0, false
	}
	if b, at := m.segment(h).find(key, h); b != nil {
		return int32(b.owners[at]), true
	}
	return 0, false
}

// stride is the number of keys looked up at a time. Their hashes and indexes (5 KiB) stay in the
// first-level cache.
const stride = 512

// possible lists those of up to stride keys that the filter does not rule out: their indexes among
// the keys, and their hashes.
type possible struct {
	n      int
	at     [stride]uint16
	hashes [stride]uint64
}

// sift fills p with the keys that pass the filter. The loop has no branch: each key is written to
// place n, which advances only if the key is possible, so that mispredictions do not stall the
// reads of the filter.
func (m *singles) sift(keys pslite.Keys, p *possible) {
	hashes := p.hash(keys)
	words, shift := m.filter.words, m.filter.shift&63
	n := uint(0)
	for i, h := range hashes {
		p.at[n%stride], p.hashes[n%stride] = uint16(i), h
		absent := filterBits(h) &^ words[h>>shift]
		// absent|-absent has its top bit set exactly where absent is not 0.
		n += uint((absent|-absent)>>63) ^ 1
	}
	p.n = int(n)
}

// takeAll fills p with all of up to stride keys, without asking the filter.
func (p *possible) takeAll(keys pslite.Keys) {
	for i := range p.hash(keys) {
		p.at[i] = uint16(i)
	}
	p.n = keys.Len()
}

// hash fills p.hashes with the hashes of all keys, and returns them.
func (p *possible) hash(keys pslite.Keys) []uint64 {
	hashes := p.hashes[:keys.Len()]
	for i := range hashes {
		hashes[i] = hash(keys.At(i))
	}
	return hashes
}

// overrule replaces the owners of those keys that are in the map. Where more than three quarters of
// a stride were, the next stride skips the filter, which would rule out too little.
func (m *singles) overrule(owners []int32, keys pslite.Keys) {
	var p possible
	var buckets [stride]*bucket
	for most := false; len(keys) > 0; {
		n := min(keys.Len(), stride)
		if most { // then the filter is not worth asking
			p.takeAll(keys[:8*n])
		} else {
			m.sift(keys[:8*n], &p)
		}
		found := m.overrulePossible(owners[:n], keys[:8*n], &p, &buckets)
		most = 4*found > 3*n
		owners, keys = owners[n:], keys[8*n:]
	}
}

// overrulePossible does that for up to stride keys, and returns the number found. It first computes
// the buckets' addresses, then touches all of them, so that their cache lines are fetched in
// parallel, and only then compares keys.
func (m *singles) overrulePossible(owners []int32, keys pslite.Keys, p *possible, buckets *[stride]*bucket) (n int) {
	for i, h := range p.hashes[:p.n] {
		s := m.segment(h)
		buckets[i] = &s[s.bucket(h)]
	}
	// This loop is here to fetch. Its result, that all buckets are empty, hardly ever holds, but
	// keeps the compiler from dropping the reads.
	read := uint8(0)
	for _, b := range buckets[:p.n] {
		read |= b.used | b.over
	}
	if read == 0 {
		return 0
	}
	for i, b := range buckets[:p.n] {
		at := p.at[i]
		key := keys.At(int(at))
		found := b.match(key)
		if found == 0 && b.over != 0 {
			h := p.hashes[i]
			var place int
			if b, place = m.segment(h).find(key, h); b != nil {
				owners[at] = int32(b.owners[place])
				n++
			}
			continue
		}
		if found != 0 {
			owners[at] = int32(b.owners[bits.TrailingZeros8(found)])
			n++
		}
	}
	return n
}

// hasAny reports whether one of the keys is in the map.
func (m *singles) hasAny(keys pslite.Keys) bool {
	var p possible
	for len(keys) > 0 {
		n := min(len(keys), 8*stride)
		list := keys[:n]
		m.sift(list, &p)
		keys = keys[n:]
		for i, h := range p.hashes[:p.n] {
			if b, _ := m.segment(h).find(list.At(int(p.at[i])), h); b != nil {
				return true
			}
		}
	}
	return false
}

// set stores the owner of a key. A segment that is full grows by a quarter until it has maxBuckets,
// and then splits in two.
func (m *singles) set(key uint64, owner int32) {
	if m.segments == nil {
		m.segments = []segment{make(segment, minBuckets)}
	}
	h := hash(key)
	for {
		s := m.segment(h)
		if b, at := s.find(key, h); b != nil {
			b.owners[at] = uint16(owner)
			return
		}
		switch {
		case !s.full():
			s.put(key, uint16(owner), h)
			m.n++
			if !m.filter.noteKey(h, m.n) {
				m.refilter()
			}
			return
		case len(s)*5/4 <= maxBuckets:
			m.replace(h, s, s.remade(len(s)*5/4))
		default:
			m.split(s, h)
		}
	}
}

// replace puts one or two segments in the place of s, whose keys have hashes like h. Two take one
// half each of the entries that s had: the lower half has hashes whose next bit is 0.
func (m *singles) replace(h uint64, s segment, by ...segment) {
	each := 1 << (m.depth - uint(*s.depth()))
	first := int(h>>1>>(63-m.depth)) &^ (each - 1)
	for i := range each {
		m.segments[first+i] = by[i*len(by)/each]
	}
}

// split divides segment s, of keys with hashes like h, by the next bit of the hash. Where s has a
// single entry in segments, the directory doubles first; that copies slice headers only.
func (m *singles) split(s segment, h uint64) {
	depth := uint(*s.depth())
	if depth == m.depth {
		doubled := make([]segment, 2*len(m.segments))
		for i := range doubled {
			doubled[i] = m.segments[i/2]
		}
		m.segments, m.depth = doubled, m.depth+1
	}
	halves := [2]segment{make(segment, maxBuckets*5/8), make(segment, maxBuckets*5/8)}
	for key, owner := range s.all {
		h := hash(key)
		halves[h>>(63-depth)&1].put(key, owner, h)
	}
	m.replace(h, s, halves[:]...)
	*halves[0].depth(), *halves[1].depth() = uint16(depth+1), uint16(depth+1)
}

// remove deletes a key. Its bucket's overflow mark stays, which makes lookups of absent keys
// longer; after segmentStale removals the segment is rebuilt without stale marks.
func (m *singles) remove(key uint64) {
	if m.n == 0 {
		return
	}
	h := hash(key)
	s := m.segment(h)
	b, at := s.find(key, h)
	if b == nil {
		return
	}
	b.used &^= 1 << at
	*s.used()--
	if *s.removed()++; *s.removed() == segmentStale {
		m.replace(h, s, s.remade(len(s)))
	}
	if m.n--; m.n == 0 {
		*m = singles{}
		return
	}
	if !m.filter.remove(m.n) {
		m.refilter()
	}
}

// all yields all keys and their owners, in no order. The map must not be changed during iteration.
func (m *singles) all() iter.Seq2[uint64, int32] {
	return func(yield func(uint64, int32) bool) {
		for i, s := range m.segments {
			if i > 0 && &s[0] == &m.segments[i-1][0] {
				continue
			}
			for key, owner := range s.all {
				if !yield(key, int32(owner)) {
					return
				}
			}
		}
	}
}

// refilter makes a new filter, sized for the current number of keys. Its cost is linear, amortized
// over the insertions or removals that made it due.
func (m *singles) refilter() {
	m.filter = newFilter(m.n)
	for key := range m.all() {
		m.filter.mark(hash(key))
	}
}

// clone returns a deep copy, in which entries that share a segment share its copy.
func (m *singles) clone() singles {
	c := *m
	c.filter.words = slices.Clone(m.filter.words)
	c.segments = slices.Clone(m.segments)
	for i, s := range m.segments {
		if i > 0 && &s[0] == &m.segments[i-1][0] {
			c.segments[i] = c.segments[i-1]
			continue
		}
		c.segments[i] = slices.Clone(s)
	}
	return c
}
