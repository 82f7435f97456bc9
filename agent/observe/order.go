package observe

import (
	"cmp"
	"slices"
)

// rankByAddress derives ids from addresses for the nodes that have none. PS-lite's scheduler
// assigns ids in the order of addresses, so once all nodes of a role are known, so are their
// ranks. A reliable id that contradicts the order shows that the scheduler sees other addresses
// than this host does, and then nothing is derived.
func (j *Job) rankByAddress() {
	if !j.ranked {
		j.ranked = j.rankRole(j.servers, j.serverCount, 8) && j.rankRole(j.workers, j.workerCount, 9)
	}
}

// rankRole gives the nodes of one role ids in the order of their addresses: base, base+2 and so
// on. It does nothing until want nodes are known, because a missing one would shift those
// behind it. It reports whether the question is settled: the ids are given, or reliable
// evidence contradicts the order.
func (j *Job) rankRole(nodes []*Node, want int, base int32) bool {
	sorted := slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.gone })
	if want == 0 || len(sorted) != want {
		return false
	}
	slices.SortFunc(sorted, compareNodes)
	for rank, n := range sorted {
		id := base + 2*int32(rank)
		// Checked for all nodes before any id is given: ids are all right or all wrong.
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

// compareNodes orders nodes as PS-lite's scheduler does: by host name as text, descending, then
// by port, ascending. The order is that of text, not of addresses: 10.0.0.9 comes before
// 10.0.0.10.
func compareNodes(a, b *Node) int {
	return cmp.Or(
		cmp.Compare(b.address.Addr().String(), a.address.Addr().String()),
		cmp.Compare(a.address.Port(), b.address.Port()),
	)
}
