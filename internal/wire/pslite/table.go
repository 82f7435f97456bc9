package pslite

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Table is a job's node table as the scheduler's ADD_NODE answer has it. The zero value
// is empty. It holds at most maxNodes entries.
type Table struct {
	nodes []Node // by id
}

const maxNodes = 1 << 16

// Learn takes over the nodes that have an id from an ADD_NODE message and reports
// whether the table changed. A node that registers again replaces the one with its id.
// Requests, whose nodes have no id yet, teach nothing. The nodes' strings are copies,
// so the frame may be reused.
func (t *Table) Learn(m *Meta) (changed bool) {
	if m.Control.Cmd != AddNode {
		return false
	}
	for _, n := range m.Control.Nodes {
		if _, _, ok := Rank(n.ID); !ok {
			continue
		}
		n.unknown = nil // alias of the frame
		at, found := slices.BinarySearchFunc(t.nodes, n.ID, func(e Node, id int32) int { return cmp.Compare(e.ID, id) })
		switch {
		case !found && len(t.nodes) < maxNodes:
			t.nodes = slices.Insert(t.nodes, at, n)
			changed = true
		case found && (t.nodes[at].Hostname != n.Hostname || t.nodes[at].Port != n.Port):
			t.nodes[at] = n
			changed = true
		}
	}
	return changed
}

// Digest distinguishes tables: in two runs of a job, even with the same scheduler's
// address, nodes listen on other ports as a rule.
func (t *Table) Digest() uint64 {
	sum := sha256.New()
	for _, n := range t.nodes {
		fmt.Fprintln(sum, n.ID, n.Hostname, n.Port)
	}
	return binary.BigEndian.Uint64(sum.Sum(nil))
}

// Nodes returns the nodes in order of their ids. The table owns the slice.
func (t *Table) Nodes() []Node { return t.nodes }

// Count returns the numbers of servers and of workers.
func (t *Table) Count() (servers, workers int) {
	for i := range t.nodes {
		switch role, _, _ := Rank(t.nodes[i].ID); role {
		case Server:
			servers++
		case Worker:
			workers++
		}
	}
	return servers, workers
}

// At returns the id of the node that listens at addr: the one whose hostname is that
// address and whose port matches or, if hostnames are names, the only one with that
// port. Names are not resolved: they may mean something else here.
func (t *Table) At(addr netip.AddrPort) (id int32, ok bool) {
	byPort, ports := Empty, 0
	for i := range t.nodes {
		n := &t.nodes[i]
		if n.Port != int32(addr.Port()) {
			continue
		}
		host, err := netip.ParseAddr(n.Hostname)
		if err == nil && host.Unmap() == addr.Addr().Unmap() {
			return n.ID, true
		}
		// A name, not an address: it can only be compared by its port.
		if err != nil {
			byPort, ports = n.ID, ports+1
		}
	}
	return byPort, ports == 1
}
