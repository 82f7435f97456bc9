package blocks

import (
	"fmt"
	"slices"
)

// None is the machine of a sample that has no machine yet.
const None = 1<<16 - 1

// A Block is a part of the samples and their machines. The features of sample s are IDs[Slot[i]]
// for i from Start[s] to Start[s+1]-1.
type Block struct {
	Number int
	Start  []uint32 // len samples+1: offsets into Slot
	// The features of each sample, as indices into IDs.
	Slot []uint32
	// The distinct features of the block, ascending.
	IDs []uint64
	// The machine of each sample, or None.
	On []uint16
}

// Samples returns the number of samples.
func (b *Block) Samples() int { return len(b.On) }

// NewBlock returns a block of rows of distinct feature ids, without machines.
func NewBlock(number int, rows [][]uint64) *Block {
	b := &Block{Number: number, Start: make([]uint32, 1, len(rows)+1), On: make([]uint16, len(rows))}
	for s, row := range rows {
		b.IDs = append(b.IDs, row...)
		b.Start = append(b.Start, uint32(len(b.IDs)))
		b.On[s] = None
	}
	b.Slot = make([]uint32, len(b.IDs))
	all := slices.Clone(b.IDs)
	slices.Sort(b.IDs)
	b.IDs = slices.Clip(slices.Compact(b.IDs))
	for i, id := range all {
		slot, _ := slices.BinarySearch(b.IDs, id)
		b.Slot[i] = uint32(slot)
	}
	return b
}

// sticky is the largest value of a counter of samples. A counter that has reached it is not
// lowered, since nobody knows how far beyond it the count was.
const sticky = 255

// An assigner is the working memory of a block's assignment: it knows which machines use each
// feature, in this block and in others.
//
// Invariant: users of a feature are others plus the machines whose counter is not 0.
type assigner struct {
	pricedMachines
	k, words int
	// By feature, the machines on which other blocks use it.
	others []uint64
	users  []uint64 // those, and the machines on which this block does
	// By feature, the samples of this block on each machine.
	counts []uint8
	known  []int32 // scratch
}

// Assign gives each sample of the block, one after the other, to the machine on which it is
// cheapest. others has, for each of IDs, the set of machines on which other blocks use it. rank is
// the number of parameters that each machine uses, over all blocks. quota is the number of samples
// that each machine gets; its sum must be at least that of the block. The block may have machines
// from an earlier step. others and rank are not changed.
func (b *Block) Assign(others []uint64, rank, quota []int64) error {
	k := len(quota)
	a := &assigner{k: k, words: setWords(k), others: others, known: make([]int32, k)}
	if len(others) != a.words*len(b.IDs) {
		return fmt.Errorf("block %d has %d features, but %d words are known of them, want %d each", b.Number, len(b.IDs), len(others), a.words)
	}
	a.pricedMachines = pricedMachines{Rank: slices.Clone(rank), Size: make([]int64, k), Limit: quota, Unlike: knownPrice}
	if len(b.On) > 0 && b.On[0] == None {
		a.Unlike = unknownPrice
	}
	a.users, a.counts = slices.Clone(others), make([]uint8, k*len(b.IDs))
	b.enter(a)
	for s, from := range b.On {
		slots := b.Slot[b.Start[s]:b.Start[s+1]]
		// Take the sample away first, or it would be attracted by its own features.
		if from != None {
			a.leave(slots, int(from))
		}
		to := a.cheapest(slots)
		if to < 0 {
			return fmt.Errorf("block %d: its machines may have fewer samples than its %d", b.Number, len(b.On))
		}
		a.join(slots, to)
		a.Size[to]++
		a.Row++
		b.On[s] = uint16(to)
	}
	return nil
}

// enter counts the samples where they are. The rank includes what they use already.
func (b *Block) enter(a *assigner) {
	for s, machine := range b.On {
		if machine == None {
			continue
		}
		for _, slot := range b.Slot[b.Start[s]:b.Start[s+1]] {
			addMember(a.usersOf(slot), int(machine))
			if c := &a.counts[int(slot)*a.k+int(machine)]; *c < sticky {
				*c++
			}
		}
	}
}

// usersOf returns the set of machines that use a feature.
func (a *assigner) usersOf(slot uint32) []uint64 {
	return a.users[int(slot)*a.words : (int(slot)+1)*a.words]
}

// othersOf returns the set of machines on which other blocks use a feature.
func (a *assigner) othersOf(slot uint32) []uint64 {
	return a.others[int(slot)*a.words : (int(slot)+1)*a.words]
}

// leave takes a sample's features from a machine. A feature stays there if another block uses it.
func (a *assigner) leave(slots []uint32, machine int) {
	for _, slot := range slots {
		c := &a.counts[int(slot)*a.k+machine]
		if *c == sticky {
			continue
		}
		if *c--; *c == 0 && !hasMember(a.othersOf(slot), machine) {
			removeMember(a.usersOf(slot), machine)
			a.Rank[machine]--
		}
	}
}

// join adds a sample's features to a machine.
func (a *assigner) join(slots []uint32, machine int) {
	for _, slot := range slots {
		if users := a.usersOf(slot); !hasMember(users, machine) {
			addMember(users, machine)
			a.Rank[machine]++
		}
		if c := &a.counts[int(slot)*a.k+machine]; *c < sticky {
			*c++
		}
	}
}

// cheapest returns the cheapest machine for a sample with these features, or -1 if all quotas are
// used up.
func (a *assigner) cheapest(slots []uint32) int {
	clear(a.known)
	differ := len(slots)
	for _, slot := range slots {
		users := a.usersOf(slot)
		if countMembers(users) == a.k {
			differ-- // known to all
			continue
		}
		for i := range Members(users) {
			a.known[i]++
		}
	}
	return a.Cheapest(len(slots), differ, a.known)
}

// Users returns for each of IDs the set of machines on which the block uses it.
func (b *Block) Users(k int) []uint64 {
	words := setWords(k)
	users := make([]uint64, words*len(b.IDs))
	for s, machine := range b.On {
		if machine == None {
			continue
		}
		for _, slot := range b.Slot[b.Start[s]:b.Start[s+1]] {
			addMember(users[int(slot)*words:(int(slot)+1)*words], int(machine))
		}
	}
	return users
}

// Lists returns what the block reports to each bucket, an element for each, which may be empty.
func (b *Block) Lists(k, buckets int) []List {
	users, words := b.Users(k), setWords(k)
	lists := make([]List, buckets)
	for i := range lists {
		lists[i].Block = b.Number
	}
	for slot, id := range b.IDs {
		l := &lists[BucketOf(id, buckets)]
		l.IDs = append(l.IDs, id)
		l.Users = append(l.Users, users[slot*words:(slot+1)*words]...)
	}
	return lists
}

// Gather merges the replies of all buckets, by number, into the others of Assign. A reply has the
// sets of the block's features in that bucket, in the order of the features.
func (b *Block) Gather(k int, replies [][]uint64) ([]uint64, error) {
	words := setWords(k)
	others := make([]uint64, 0, words*len(b.IDs))
	at := make([]int, len(replies))
	for _, id := range b.IDs {
		i := BucketOf(id, len(replies))
		if at[i]+words > len(replies[i]) {
			return nil, fmt.Errorf("block %d: bucket %d says less than was asked", b.Number, i)
		}
		others = append(others, replies[i][at[i]:at[i]+words]...)
		at[i] += words
	}
	return others, nil
}
