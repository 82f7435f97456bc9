package observe

import (
	"cmp"
	"slices"
)

// rankByAddress gives ids to nodes without a known one: the scheduler assigns ids
// in the order of addresses, and when all of a role are known, so is the order. An
// id that is known better and contradicts the order makes it void.
func (j *Job) rankByAddress() {
	if !j.ranked {
		j.ranked = j.rankRole(j.servers, j.serverCount, 8) && j.rankRole(j.workers, j.workerCount, 9)
	}
}

// rankRole gives the nodes of one role their ids in the order of their addresses, and
// reports whether there is nothing left to wait for: the ids are given, or one from a
// better source contradicts the order. It does nothing until all nodes are there: a
// missing one would shift those behind it.
func (j *Job) rankRole(nodes []*Node, want int, base int32) bool {
	sorted := slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.gone })
	if want == 0 || len(sorted) != want {
		return false
	}
	slices.SortFunc(sorted, compareNodes)
	for rank, n := range sorted {
		id := base + 2*int32(rank)
		if !n.address.IsValid() || n.id != 0 && n.id != id {
			return n.id != 0 && n.idFrom != fromOrder
		}
	}
	for rank, n := range sorted {
		if n.id == 0 {
			n.setID(base+2*int32(rank), fromOrder)
		}
	}
	return true
}

// compareNodes orders nodes as PS-lite's scheduler does: by host name as text,
// falling, then by port, rising.
func compareNodes(a, b *Node) int {
	return cmp.Or(
		cmp.Compare(b.address.Addr().String(), a.address.Addr().String()),
		cmp.Compare(a.address.Port(), b.address.Port()),
	)
}
