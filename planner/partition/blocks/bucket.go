package blocks

import (
	"slices"

	"github.com/psidecar/psidecar/planner/partition/stream"
)

// A List is what one block says of those of its features that are in a bucket:
// the features, ascending, and for each the set of machines on which the block
// uses it.
type List struct {
	Block int
	IDs   []uint64
	Users []uint64 // stream.SetWords(k) words for each of IDs
}

// A Bucket knows of some of the features what all blocks use where.
type Bucket struct {
	k, words int
	IDs      []uint64 // ascending
	once     []uint64 // for each, the machines on which a block uses it
	twice    []uint64 // and those on which two or more do
}

// NewBucket merges the lists of all blocks that have features in the bucket.
func NewBucket(k int, lists []List) *Bucket {
	b := &Bucket{k: k, words: stream.SetWords(k)}
	total := 0
	for i := range lists {
		total += len(lists[i].IDs)
	}
	b.IDs = make([]uint64, 0, total)
	for i := range lists {
		b.IDs = append(b.IDs, lists[i].IDs...)
	}
	slices.Sort(b.IDs)
	b.IDs = slices.Compact(b.IDs)
	b.once, b.twice = make([]uint64, b.words*len(b.IDs)), make([]uint64, b.words*len(b.IDs))
	for i := range lists {
		b.each(&lists[i], func(at, from int) {
			users := lists[i].Users[from]
			b.twice[at] |= b.once[at] & users
			b.once[at] |= users
		})
	}
	return b
}

// each calls visit for each word of a list, with where it is in the bucket's
// sets and in the list's.
func (b *Bucket) each(l *List, visit func(at, from int)) {
	p := 0
	for i, id := range l.IDs {
		for b.IDs[p] != id {
			p++
		}
		for w := range b.words {
			visit(p*b.words+w, i*b.words+w)
		}
	}
}

// Others returns, for each feature of a list that the bucket was made with, the
// set of machines on which other blocks use it.
func (b *Bucket) Others(l *List) []uint64 {
	others := make([]uint64, len(l.Users))
	b.each(l, func(at, from int) { others[from] = b.twice[at] | b.once[at]&^l.Users[from] })
	return others
}

// Rank returns how many of the bucket's features each machine uses.
func (b *Bucket) Rank() []int64 {
	rank := make([]int64, b.k)
	for p := range b.IDs {
		for i := range stream.Members(b.Users(p)) {
			rank[i]++
		}
	}
	return rank
}

// Users returns the set of machines that use feature IDs[p].
func (b *Bucket) Users(p int) []uint64 { return b.once[p*b.words : (p+1)*b.words] }

// BucketOf returns the bucket of a feature, of so many.
func BucketOf(id uint64, buckets int) int { return int(mix(id) % uint64(buckets)) }
