package blocks

import (
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/partition/stream"
)

// None is the machine of a sample that has none yet.
const None = 1<<16 - 1

// A Block is a part of the samples and where they are.
type Block struct {
	Number int
	Start  []uint32 // len samples+1: offsets into Slot
	Slot   []uint32 // features of each sample, as indices into IDs
	IDs    []uint64 // the block's distinct features, ascending
	On     []uint16 // machine of each sample, or None
}

// Samples returns the number of samples.
func (b *Block) Samples() int { return len(b.On) }

// NewBlock makes a block of rows of distinct feature ids, with no machines.
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

// sticky is where a counter of samples ends: from there on nothing is taken
// away, since nobody knows how far beyond it was.
const sticky = 255

// An assigner is what a block needs to be assigned.
type assigner struct {
	stream.PricedMachines
	k, words int
	others   []uint64 // for each feature, the machines on which other blocks use it
	users    []uint64 // those, and the machines on which this block does
	counts   []uint8  // for each feature, samples of this block on each machine
	known    []int32  // scratch
}

// Assign gives each sample of the block to the machine that it is cheapest on,
// one after the other, knowing of the features what other blocks use on which
// machines, a set for each of IDs, and rank, the parameters that each machine
// uses, all blocks counted. quota is the number of samples that each machine
// gets. The block may have machines from an earlier step or none.
func (b *Block) Assign(others []uint64, rank, quota []int64) error {
	k := len(quota)
	a := &assigner{k: k, words: stream.SetWords(k), others: others, known: make([]int32, k)}
	if len(others) != a.words*len(b.IDs) {
		return fmt.Errorf("block %d has %d features, but %d words are known of them, want %d each", b.Number, len(b.IDs), len(others), a.words)
	}
	a.PricedMachines = stream.PricedMachines{Rank: slices.Clone(rank), Size: make([]int64, k), Limit: quota, Unlike: stream.Known}
	if len(b.On) > 0 && b.On[0] == None {
		a.Unlike = stream.UnknownPrice
	}
	a.users, a.counts = slices.Clone(others), make([]uint8, k*len(b.IDs))
	b.enter(a)
	for s, from := range b.On {
		slots := b.Slot[b.Start[s]:b.Start[s+1]]
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

// enter counts the samples where they are. What they use is in the rank already.
func (b *Block) enter(a *assigner) {
	for s, machine := range b.On {
		if machine == None {
			continue
		}
		for _, slot := range b.Slot[b.Start[s]:b.Start[s+1]] {
			stream.AddMember(a.usersOf(slot), int(machine))
			if c := &a.counts[int(slot)*a.k+int(machine)]; *c < sticky {
				*c++
			}
		}
	}
}

func (a *assigner) usersOf(slot uint32) []uint64 {
	return a.users[int(slot)*a.words : (int(slot)+1)*a.words]
}

func (a *assigner) othersOf(slot uint32) []uint64 {
	return a.others[int(slot)*a.words : (int(slot)+1)*a.words]
}

func (a *assigner) leave(slots []uint32, machine int) {
	for _, slot := range slots {
		c := &a.counts[int(slot)*a.k+machine]
		if *c == sticky {
			continue
		}
		if *c--; *c == 0 && !stream.HasMember(a.othersOf(slot), machine) {
			stream.RemoveMember(a.usersOf(slot), machine)
			a.Rank[machine]--
		}
	}
}

func (a *assigner) join(slots []uint32, machine int) {
	for _, slot := range slots {
		if users := a.usersOf(slot); !stream.HasMember(users, machine) {
			stream.AddMember(users, machine)
			a.Rank[machine]++
		}
		if c := &a.counts[int(slot)*a.k+machine]; *c < sticky {
			*c++
		}
	}
}

func (a *assigner) cheapest(slots []uint32) int {
	clear(a.known)
	differ := len(slots)
	for _, slot := range slots {
		users := a.usersOf(slot)
		if stream.CountMembers(users) == a.k {
			differ-- // known to all
			continue
		}
		for i := range stream.Members(users) {
			a.known[i]++
		}
	}
	return a.Cheapest(len(slots), differ, a.known)
}

// Users returns, for each of IDs, the set of the machines on which the block
// uses it.
func (b *Block) Users(k int) []uint64 {
	words := stream.SetWords(k)
	users := make([]uint64, words*len(b.IDs))
	for s, machine := range b.On {
		if machine == None {
			continue
		}
		for _, slot := range b.Slot[b.Start[s]:b.Start[s+1]] {
			stream.AddMember(users[int(slot)*words:(int(slot)+1)*words], int(machine))
		}
	}
	return users
}

// Lists returns what the block says to each of so many buckets.
func (b *Block) Lists(k, buckets int) []List {
	users, words := b.Users(k), stream.SetWords(k)
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

// Gather returns what Assign takes from what each bucket says: its words go,
// in the order of the features, to where the features are.
func (b *Block) Gather(k int, replies [][]uint64) ([]uint64, error) {
	words := stream.SetWords(k)
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
