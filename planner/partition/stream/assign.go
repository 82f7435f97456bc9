package stream

import "math"

// sticky is where a counter of samples ends: from there on nothing is taken
// away, since nobody knows how far beyond it was. Such a feature is on the
// machine for good, as frequent ones are.
const sticky = 255

// An assigner chooses machines for samples, one after the other. Of each
// feature that its table holds it knows how many samples use it on each
// machine, by what was chosen in this pass and, for samples that are still to
// come, in the pass before.
type assigner struct {
	k, words int
	table    *table
	rank     []int64 // features that each machine uses; those not in the table count for each sample
	beyond   int64   // features of the sample that are not in the table
	size     []int64 // samples that each machine has got in this pass
	limit    int64   // of size
	price    float64 // of what makes machines unlike
	row      int64   // samples assigned in this pass
	slots    []int   // of the sample's features, scratch
	known    []int32 // of the sample's features on each machine, scratch

	edges, followed int64 // of this pass: all, and those whose feature is in the table
}

// A slot's words are two sets of machines: users, where its counters are not 0,
// and now, those that this pass put a user on.
func newAssigner(k int, memory int64) *assigner {
	a := &assigner{k: k, words: (k + 63) / 64, rank: make([]int64, k), size: make([]int64, k), known: make([]int32, k)}
	a.table = newTable(memory/slotBytes(2*a.words, k), 2*a.words, k)
	return a
}

func (a *assigner) users(s int) []uint64 { return a.table.wordsOf(s)[:a.words] }

func (a *assigner) now(s int) []uint64 { return a.table.wordsOf(s)[a.words:] }

// countFeatures is what the first pass does with a sample: the table gets its features.
func (a *assigner) countFeatures(ids []uint64) {
	for _, id := range ids {
		if a.table.full() {
			a.table.forgetRare()
		}
		a.table.add(id)
	}
	a.row++
}

// begin starts a pass of assignment over n samples.
func (a *assigner) begin(first bool, n int64) {
	a.price = 1
	if first {
		a.price = 4 // with nothing known, machines that start alike are worth more
	}
	a.limit = (n + int64(a.k) - 1) / int64(a.k)
	a.row, a.edges, a.followed = 0, 0, 0
	clear(a.size)
	for s := range a.table.ids {
		clear(a.now(s))
	}
}

// assign chooses the machine of a sample and puts it there. old is where the
// pass before put it, or -1.
func (a *assigner) assign(ids []uint64, old int) int {
	machine := a.choose(ids, old)
	a.settle(machine)
	return machine
}

// choose takes a sample from where it was and returns the machine for it,
// which settle has to be told of.
func (a *assigner) choose(ids []uint64, old int) int {
	a.slots = a.slots[:0]
	for _, id := range ids {
		if s := a.table.find(id); s >= 0 {
			a.slots = append(a.slots, s)
		}
	}
	a.edges += int64(len(ids))
	a.followed += int64(len(a.slots))
	a.beyond = int64(len(ids) - len(a.slots))
	if old >= 0 {
		a.rank[old] -= a.beyond
		for _, s := range a.slots {
			a.leave(s, old)
		}
	}
	return a.cheapest()
}

// settle puts the sample of choose on a machine.
func (a *assigner) settle(machine int) {
	for _, s := range a.slots {
		a.join(s, machine)
	}
	a.rank[machine] += a.beyond
	a.size[machine]++
	a.row++
}

func (a *assigner) leave(s, machine int) {
	count := &a.table.countsOf(s)[machine]
	if *count == sticky {
		return
	}
	if *count--; *count == 0 {
		a.users(s)[machine>>6] &^= 1 << (machine & 63)
		a.rank[machine]--
	}
}

func (a *assigner) join(s, machine int) {
	count := &a.table.countsOf(s)[machine]
	if *count == 0 {
		a.users(s)[machine>>6] |= 1 << (machine & 63)
		a.rank[machine]++
	}
	if *count < sticky {
		*count++
	}
	a.now(s)[machine>>6] |= 1 << (machine & 63)
}

// aheadPrice is what a machine pays for all the samples that it may have if none
// of them were due yet, in features by the root of a sample's features: small
// against what samples have in common, but not nothing.
const aheadPrice = 10

// cheapest returns the machine that the sample brings the fewest new features,
// dearer where many are already (DWW21's objective is the largest) and where
// the machine is ahead of its share of the samples.
func (a *assigner) cheapest() int {
	clear(a.known)
	differ := len(a.slots)
	for _, s := range a.slots {
		users := a.users(s)
		if size(users) == a.k {
			differ--
			continue // known to all
		}
		for i := range members(users) {
			a.known[i]++
		}
	}
	var sum int64
	for _, r := range a.rank {
		sum += r
	}
	mean := max(1, float64(sum)/float64(a.k))
	due := float64(a.row) / float64(a.k)
	root := math.Sqrt(float64(len(a.slots)))
	best, least := -1, 0.0
	for i := range a.k {
		if a.size[i] >= a.limit {
			continue
		}
		fresh := float64(int32(differ) - a.known[i])
		cost := fresh * (1 + a.price*max(0, float64(a.rank[i])/mean-1))
		cost += a.price * aheadPrice * root * max(0, float64(a.size[i])-due) / float64(a.limit)
		if best < 0 || cost < least || cost == least && a.size[i] < a.size[best] {
			best, least = i, cost
		}
	}
	return best
}
