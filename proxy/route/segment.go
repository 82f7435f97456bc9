package route

import (
	"math/bits"
	"unsafe"
)

// bucket is one cache line: keys, and the ranks of their owners.
type bucket struct {
	keys   [bucketKeys]uint64
	owners [bucketKeys]uint16
	used   uint8  // bit i: keys[i] is in use
	over   uint8  // not 0: a key that belongs here is in a later bucket, since this one was full
	note   uint16 // of the first three buckets of a segment: see used, depth and removed
}

const (
	bucketKeys = 6
	// A segment has at least minBuckets. It grows by a quarter at a time, and splits in two when it
	// would have more than maxBuckets.
	minBuckets, maxBuckets = 32, 128
	// segmentStale is the number of removals after which a segment is rebuilt, to drop the overflow
	// marks of buckets that are no longer full.
	segmentStale = 512
)

var _ [64]byte = [unsafe.Sizeof(bucket{})]byte{}

// segment is an array of buckets with open addressing between them. The notes of the first three
// buckets hold the segment's number of keys, its depth (see singles) and its removals, so that a
// segment needs no header, whose line a lookup would have to read.
type segment []bucket

func (s segment) used() *uint16    { return &s[0].note }
func (s segment) depth() *uint16   { return &s[1].note }
func (s segment) removed() *uint16 { return &s[2].note }

// full reports whether a segment takes no more keys: it is 55% full then, and about one bucket in
// twenty has all six places taken.
func (s segment) full() bool { return 20*int(*s.used()) >= 11*bucketKeys*len(s) }

// bucket returns the index of the bucket in which a key with that hash belongs: bits 16 to 47 of
// the hash, scaled to the number of buckets by a product instead of a division.
func (s segment) bucket(h uint64) int { return int(h >> 16 & 0xffffffff * uint64(len(s)) >> 32) }

// match returns the places of a key in a bucket as a bit mask; at most one bit is set. It compares
// all six places without a branch. A place that is not in use may hold a stale key, hence the mask.
func (b *bucket) match(key uint64) uint8 {
	return b.used & (same(b.keys[0], key) | same(b.keys[1], key)<<1 | same(b.keys[2], key)<<2 |
		same(b.keys[3], key)<<3 | same(b.keys[4], key)<<4 | same(b.keys[5], key)<<5)
}

// same compiles to a compare and a SETcc, without a branch.
func same(a, b uint64) (one uint8) {
	if a == b {
		one = 1
	}
	return one
}

// find returns the bucket and place of a key, and nil where the segment does not have it. An absent
// key costs one bucket unless that has overflowed.
func (s segment) find(key, h uint64) (b *bucket, place int) {
	for i := s.bucket(h); ; {
		b = &s[i]
		if m := b.match(key); m != 0 {
			return b, bits.TrailingZeros8(m)
		}
		if b.over == 0 {
			return nil, 0
		}
		if i++; i == len(s) {
			i = 0
		}
	}
}

// put adds a key that is not in the segment. The caller has made sure that there is room.
func (s segment) put(key uint64, owner uint16, h uint64) {
	i := s.bucket(h)
	for s[i].used == 1<<bucketKeys-1 {
		s[i].over = 1
		if i++; i == len(s) {
			i = 0
		}
	}
	b := &s[i]
	at := bits.TrailingZeros8(^b.used)
	b.keys[at], b.owners[at] = key, owner
	b.used |= 1 << at
	*s.used()++
}

// remade returns a copy of a segment with the given number of buckets and without stale marks.
func (s segment) remade(buckets int) segment {
	n := make(segment, buckets)
	for key, owner := range s.all {
		n.put(key, owner, hash(key))
	}
	*n.depth() = *s.depth()
	return n
}

// all yields a segment's keys and their owners.
func (s segment) all(yield func(uint64, uint16) bool) {
	for i := range s {
		for left := s[i].used; left != 0; left &= left - 1 {
			at := bits.TrailingZeros8(left)
			if !yield(s[i].keys[at], s[i].owners[at]) {
				return
			}
		}
	}
}
