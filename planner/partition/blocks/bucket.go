package blocks

import (
	"slices"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// A List is what one block reports of its features in one bucket: the features, ascending, and for
// each the set of machines on which the block uses it.
type List struct {
	Block int
	IDs   []uint64
	// setWords(k) words for each of IDs.
	Users []uint64
}

// A Bucket knows of some of the features on which machines all blocks use them. Two sets per
// feature suffice to answer every block: what others use is what is used twice, plus what is used
// once and not by the block itself.
type Bucket struct {
	k, words int
	IDs      []uint64 // ascending
	// By feature, the machines on which at least one block uses it.
	once []uint64
	// The machines on which at least two blocks do.
	twice []uint64
}

// NewBucket merges the lists of all blocks with features in the bucket. Their order does not
// matter.
func NewBucket(k int, lists []List) *Bucket {
	b := &Bucket{k: k, words: setWords(k)}
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

// each calls visit for each word of a list, with its position in the bucket's sets and in the
// list's. It merges the two ascending lists of ids.
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

// Others returns, for each feature of a list with which the bucket was made, the set of machines on
// which other blocks use it.
func (b *Bucket) Others(l *List) []uint64 {
	others := make([]uint64, len(l.Users))
	b.each(l, func(at, from int) { others[from] = b.twice[at] | b.once[at]&^l.Users[from] })
	return others
}

// Rank returns how many of the bucket's features each machine uses.
func (b *Bucket) Rank() []int64 {
	rank := make([]int64, b.k)
	for p := range b.IDs {
		for i := range Members(b.Users(p)) {
			rank[i]++
		}
	}
	return rank
}

// Users returns the set of machines that use feature IDs[p]. It belongs to the bucket.
func (b *Bucket) Users(p int) []uint64 { return b.once[p*b.words : (p+1)*b.words] }

// BucketOf returns the bucket of a feature. Hashing keeps buckets about equally large whatever the
// ids.
func BucketOf(id uint64, buckets int) int { return int(splitmix.Next(id) % uint64(buckets)) }
