package page

import "slices"

// A Plane is one of the quantities that are counted for a key.
type Plane int

// The planes of [Sums].
const (
	PullsPlane Plane = iota
	PushesPlane
	PulledBytesPlane
	PushedBytesPlane
	// Planes is the number of planes.
	Planes = 4
)

// Sums are amounts by plane.
type Sums [Planes]uint64

// Accesses returns pulls and pushes together.
func (s Sums) Accesses() uint64 { return s[PullsPlane] + s[PushesPlane] }

// Add adds others, plane by plane.
func (s *Sums) Add(others Sums) {
	for p, n := range others {
		s[p] += n
	}
}

// A Grid holds sums by worker and by blocks of keys that are fixed beforehand, so that a
// stretch of time takes little memory. It is not safe for concurrent use.
//
// Invariant: each row is nil or has as many entries as Firsts.
type Grid struct {
	// Firsts are the first keys of the blocks, ascending from 0. A block ends before the next
	// one's first key.
	Firsts []uint64
	// Rows are by worker, then by block; nil for a worker that did nothing.
	Rows [][]Sums
}

// Regroup returns the grid's rows for coarser blocks, whose firsts must all be among the
// grid's. The result shares no memory with the grid.
func (g *Grid) Regroup(firsts []uint64) [][]Sums {
	rows := make([][]Sums, len(g.Rows))
	for w, row := range g.Rows {
		if row == nil {
			continue
		}
		rows[w] = make([]Sums, len(firsts))
		at := 0
		for i, sums := range row {
			for at+1 < len(firsts) && firsts[at+1] <= g.Firsts[i] {
				at++
			}
			rows[w][at].Add(sums)
		}
	}
	return rows
}

// CommonEdges returns the firsts that all grids have, which are the blocks in which they can be
// added up; nil without grids.
func CommonEdges(grids []*Grid) []uint64 {
	if len(grids) == 0 {
		return nil
	}
	common := slices.Clone(grids[0].Firsts)
	for _, g := range grids[1:] {
		if len(g.Firsts) == len(common) && slices.Equal(g.Firsts, common) {
			continue
		}
		common = slices.DeleteFunc(common, func(k uint64) bool {
			_, ok := slices.BinarySearch(g.Firsts, k)
			return !ok
		})
	}
	return common
}
