// This part says what it costs to give a training sample to a machine, in
// parameters that the machine would use besides those that it uses already,
// dearer where that makes machines unlike. The partitioners for data beyond
// memory choose by it: package stream, and package blocks.

package stream

import "math"

// PricedMachines are what the machines have so far. All lists have one number for
// each machine.
type PricedMachines struct {
	Rank  []int64 // parameters that each uses
	Size  []int64 // samples that each has got in this pass
	Limit []int64 // of Size
	Row   int64   // samples given in this pass
	// Unlike is the price of what makes machines unlike, against that of a
	// parameter.
	Unlike float64
}

// UnknownPrice and Known are the price of what makes machines unlike in a first
// pass, when nothing is known of the samples to come, and in later ones.
const (
	UnknownPrice = 4
	Known        = 1
)

// ahead is what a machine pays for all the samples that it may have if none
// of them were due yet, in parameters by the root of a sample's parameters:
// small against what samples have in common, but not nothing.
const ahead = 10

// Cheapest returns the machine below its limit that a sample brings the fewest
// new parameters, dearer where many are already (DWW21's objective is the
// largest) and where the machine is ahead of its share of the samples; -1 where
// all are at their limits. The sample uses so many parameters that are
// followed; differ of them are not used by all machines, and known of these by
// each machine.
func (m *PricedMachines) Cheapest(followed, differ int, known []int32) int {
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
