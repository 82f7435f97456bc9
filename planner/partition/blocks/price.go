// This file has the cost of giving a training sample to a machine: the parameters that the machine
// would use in addition, at a higher price if that makes the machines more unlike.

package blocks

import "math"

// pricedMachines are what the machines have so far; all lists are by machine.
type pricedMachines struct {
	// Rank is the number of parameters that each machine uses.
	Rank []int64
	// Size is the number of samples that each has got in this pass.
	Size []int64
	// Limit bounds Size.
	Limit []int64
	// Row is the number of samples given in this pass.
	Row int64
	// Unlike is the price of making machines more unlike, relative to that of a parameter.
	Unlike float64
}

// unknownPrice is the price of unlike machines in a first pass, when nothing is known of the
// samples to come, Known that in later passes.
const (
	unknownPrice = 4
	knownPrice   = 1
)

// ahead is what a machine pays for all the samples that it may have if none of them were due yet,
// in parameters per square root of a sample's parameters. It is small relative to what samples have
// in common, but not nothing.
const ahead = 10

// Cheapest returns the machine for a sample, or -1 if all are at their limits. The cost of a
// machine is the number of parameters that the sample brings it anew, times a price that rises if
// the machine already uses more than the mean (DWW21's objective is the maximum), plus a charge if
// it is ahead of its share of the samples. Among equal costs the machine with the fewest samples is
// taken.
//
// followed is the number of the sample's parameters that are known, differ the number of those that
// not all machines use, and known how many of these each machine uses.
func (m *pricedMachines) Cheapest(followed, differ int, known []int32) int {
	var sum int64
	for _, r := range m.Rank {
		sum += r
	}
	k := float64(len(m.Rank))
	mean := max(1, float64(sum)/k)
	due := float64(m.Row) / k
	root := math.Sqrt(float64(followed))
	best, least := -1, 0.0
	for i, limit := range m.Limit {
		if m.Size[i] >= limit {
			continue
		}
		fresh := float64(int32(differ) - known[i])
		cost := fresh * (1 + m.Unlike*max(0, float64(m.Rank[i])/mean-1))
		cost += m.Unlike * ahead * root * max(0, float64(m.Size[i])-due) / float64(limit)
		if best < 0 || cost < least || cost == least && m.Size[i] < m.Size[best] {
			best, least = i, cost
		}
	}
	return best
}
