package stream

// sticky is the largest value of a counter of samples. A counter that has reached it is not
// lowered, since nobody knows how far beyond it the count was. Such a feature stays on the machine
// for good, as frequent ones do anyway.
const sticky = 255

// An assigner chooses machines for samples, one after the other. For each feature in its table it
// knows how many samples use it on each machine: as chosen in this pass, and, for samples that are
// still to come, as in the pass before.
//
// A slot of the table has a counter for each machine, and its words are two sets of machines:
// users, those whose counter is not 0, and now, those on which this pass has put a user.
type assigner struct {
	k, words int
	table    *table
	// Machines' Rank counts features that are not in the table once for each sample.
	PricedMachines
	// The number of the sample's features that are not in the table.
	beyond int64
	slots  []int   // of the sample's features, scratch
	known  []int32 // of the sample's features on each machine, scratch

	// Of this pass: all edges, and those whose feature is in the table.
	edges, followed int64
}

// newAssigner returns an assigner whose table takes up to memory bytes.
func newAssigner(k int, memory int64) *assigner {
	a := &assigner{k: k, words: SetWords(k), known: make([]int32, k)}
	a.PricedMachines = PricedMachines{Rank: make([]int64, k), Size: make([]int64, k), Limit: make([]int64, k)}
	a.table = newTable(memory/slotBytes(2*a.words, k), 2*a.words, k)
	return a
}

// users returns the set of machines with a user of the feature in a slot, by what is known.
func (a *assigner) users(s int) []uint64 { return a.table.wordsOf(s)[:a.words] }

// now returns the set of machines on which this pass has put a user of the feature.
func (a *assigner) now(s int) []uint64 { return a.table.wordsOf(s)[a.words:] }

// countFeatures adds the features of a sample to the table. It is pass 0.
func (a *assigner) countFeatures(ids []uint64) {
	for _, id := range ids {
		if a.table.full() {
			a.table.forgetRare()
		}
		a.table.add(id)
	}
	a.Row++
}

// begin starts a pass of assignment over n samples.
func (a *assigner) begin(first bool, n int64) {
	a.Unlike = Known
	if first {
		a.Unlike = UnknownPrice // machines that start alike are worth more
	}
	for i := range a.Limit {
		a.Limit[i] = (n + int64(a.k) - 1) / int64(a.k)
	}
	a.Row, a.edges, a.followed = 0, 0, 0
	clear(a.Size)
	for s := range a.table.ids {
		clear(a.now(s))
	}
}

// assign chooses the machine of a sample and puts it there. old is its machine in the pass before,
// or -1.
func (a *assigner) assign(ids []uint64, old int) int {
	machine := a.choose(ids, old)
	a.settle(machine)
	return machine
}

// choose removes a sample from its old machine and returns the one for it now. settle must follow,
// with that machine or another.
func (a *assigner) choose(ids []uint64, old int) int {
	a.slots = a.slots[:0]
	for _, id := range ids {
		if s := a.table.find(id); s >= 0 {
			a.slots = append(a.slots, s)
		}
	}
	a.edges += int64(len(ids))
	a.followed += int64(len(a.slots))
	// The table does not know who uses these, so each sample pays for them anew.
	a.beyond = int64(len(ids) - len(a.slots))
	if old >= 0 {
		a.Rank[old] -= a.beyond
		for _, s := range a.slots {
			a.leave(s, old)
		}
	}
	return a.cheapest()
}

// settle puts the sample of the last choose on a machine.
func (a *assigner) settle(machine int) {
	for _, s := range a.slots {
		a.join(s, machine)
	}
	a.Rank[machine] += a.beyond
	a.Size[machine]++
	a.Row++
}

// leave counts a feature's user on a machine as gone.
func (a *assigner) leave(s, machine int) {
	count := &a.table.countsOf(s)[machine]
	if *count == sticky {
		return
	}
	if *count--; *count == 0 {
		RemoveMember(a.users(s), machine)
		a.Rank[machine]--
	}
}

// join counts a user of a feature on a machine.
func (a *assigner) join(s, machine int) {
	count := &a.table.countsOf(s)[machine]
	if *count == 0 {
		AddMember(a.users(s), machine)
		a.Rank[machine]++
	}
	if *count < sticky {
		*count++
	}
	AddMember(a.now(s), machine)
}

// cheapest returns the machine for the sample of choose.
func (a *assigner) cheapest() int {
	clear(a.known)
	differ := len(a.slots)
	for _, s := range a.slots {
		users := a.users(s)
		if CountMembers(users) == a.k {
			differ--
			continue // known to all
		}
		for i := range Members(users) {
			a.known[i]++
		}
	}
	return a.Cheapest(len(a.slots), differ, a.known)
}
