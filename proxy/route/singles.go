package route

import (
	"iter"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// singles is a map from keys to owners, made to be asked for whole lists of
// keys: an extendible hash table whose buckets are one line of the cache each,
// behind a filter that fits into a core's own cache for a million keys. Nothing
// about a key is decided by a branch on memory that is not there yet, so that
// the memory of many keys is on its way at once. Changes touch what they change:
// a segment that is full becomes two, and never all at once.
//
// The zero value is empty.
type singles struct {
	n int
	// segments has 2^depth entries, by the first bits of a key's hash. A segment
	// whose own depth is smaller stands in several in a row.
	segments []segment
	depth    uint
	filter   filter
}

// hash spreads keys. Its first bits choose segment and word of the filter, those
// in the middle the bucket, its last ones the bits in the word.
func hash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

func (m *singles) segment(h uint64) segment { return m.segments[h>>1>>((63-m.depth)&63)] }

// get returns a key's owner.
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

// stride is how many keys are asked for at a time.
const stride = 512

// possible are those of up to stride keys that the filter does not rule out:
// which of the keys they are, and their hashes.
type possible struct {
	n      int
	at     [stride]uint16
	hashes [stride]uint64
}

// sift finds out which of up to stride keys are possible. Each loop has few
// instructions, so that the memory of many keys is read at once.
func (m *singles) sift(keys pslite.Keys, p *possible) {
	hashes := p.hash(keys)
	words, shift := m.filter.words, m.filter.shift&63
	n := uint(0)
	for i, h := range hashes {
		p.at[n%stride], p.hashes[n%stride] = uint16(i), h
		absent := filterBits(h) &^ words[h>>shift]
		n += uint((absent|-absent)>>63) ^ 1
	}
	p.n = int(n)
}

// takeAll takes all of up to stride keys for possible.
func (p *possible) takeAll(keys pslite.Keys) {
	for i := range p.hash(keys) {
		p.at[i] = uint16(i)
	}
	p.n = keys.Len()
}

func (p *possible) hash(keys pslite.Keys) []uint64 {
	hashes := p.hashes[:keys.Len()]
	for i := range hashes {
		hashes[i] = hash(keys.At(i))
	}
	return hashes
}

// overrule sets the owners of those of the keys that are in the map.
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

// overrulePossible does so for up to stride keys and returns how many were found.
func (m *singles) overrulePossible(owners []int32, keys pslite.Keys, p *possible, buckets *[stride]*bucket) (n int) {
	for i, h := range p.hashes[:p.n] {
		s := m.segment(h)
		buckets[i] = &s[s.bucket(h)]
	}
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

// set gives a key an owner.
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

// replace puts others in the place of the segment of keys with such a hash: one,
// or two, for the next bit of their hashes.
func (m *singles) replace(h uint64, s segment, by ...segment) {
	each := 1 << (m.depth - uint(*s.depth()))
	first := int(h>>1>>(63-m.depth)) &^ (each - 1)
	for i := range each {
		m.segments[first+i] = by[i*len(by)/each]
	}
}

// split makes two segments of the one that keys with such a hash are in.
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

// remove takes a key out.
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

// all yields all keys and their owners, in no order. The map must not be
// changed meanwhile.
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

// refilter makes a new filter, of a size for the present keys.
func (m *singles) refilter() {
	m.filter = newFilter(m.n)
	for key := range m.all() {
		m.filter.mark(hash(key))
	}
}

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
