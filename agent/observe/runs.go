package observe

import (
	"maps"
	"net/netip"
	"slices"
)

// A job may run again under the same scheduler address. Its nodes are then other processes,
// which may have ports and PIDs that nodes of an earlier run had. So an address or a PID
// identifies a node only until better evidence, an id, contradicts it. The functions below move
// addresses, processes and streams between nodes when that happens.

// absorb joins m into n, because they turned out to be the same member: typically n has the id,
// from an earlier run, and m is the new process. Addresses, process and streams of m become
// n's. What was counted for m before it had an id stays under m's index and is not shown, as m
// is gone.
func (o *Observer) absorb(n, m *Node) {
	j := n.job
	// Everything that leads to m must lead to n from now on, streams in progress included.
	for a, node := range j.byAddress {
		if node == m {
			j.byAddress[a] = n
		}
	}
	for pid, node := range j.byPID {
		if node == m {
			j.byPID[pid] = n
		}
	}
	for _, s := range o.streams {
		if s.sender == m {
			s.sender = n
		}
		if s.receiver == m {
			s.receiver = n
		}
	}
	n.address = m.address
	m.handProcess(n)
	m.gone = true
	j.nodes = slices.DeleteFunc(j.nodes, func(node *Node) bool { return node == m })
}

// listening returns the node that listens at an address, if it can have role r. Runs reuse
// ports, so a node of another role that is recorded there belongs to an earlier run and loses
// the address.
func (j *Job) listening(a netip.AddrPort, r role) *Node {
	n := j.byAddress[a]
	if n != nil && !n.mayBe(r) {
		j.removeNode(a)
		return nil
	}
	return n
}

// removeNode records that the node at an address, if any, no longer listens there. The node
// itself stays.
func (j *Job) removeNode(a netip.AddrPort) {
	if n := j.byAddress[a]; n != nil && n.address == a {
		n.address = netip.AddrPort{}
	}
	delete(j.byAddress, a)
}

// prune forgets the addresses and PIDs of earlier runs. now has the addresses of the node
// table; the addresses of this host's processes stay too, since a node may listen at more of
// them than the table has.
func (j *Job) prune(now map[netip.AddrPort]bool) {
	for a, n := range j.byAddress {
		if !now[a] && a != j.Scheduler && !slices.Contains(n.process.Listens, a) {
			j.removeNode(a)
		}
	}
	maps.DeleteFunc(j.byPID, func(pid int, n *Node) bool { return n.process.PID != pid })
}

// place is where a node of a role listens. The role is part of it because two runs may use one
// address for different roles.
type place struct {
	at   netip.AddrPort
	role role
}

// processes returns the nodes with a process on this host, by where they listen. If nodes of
// several runs share a place, the one that was met last has it. The nodes are copies: their
// processes are about to be moved.
func (j *Job) processes() map[place]Node {
	all := map[place]Node{}
	for _, n := range j.nodes {
		for _, a := range n.process.Listens {
			if at := (place{a, roleNamed(n.process.Role)}); all[at].met < n.met {
				all[at] = *n
			}
		}
	}
	return all
}

// giveProcesses gives each node the process that listens at its address, and takes away a
// process that does not listen there.
func (j *Job) giveProcesses(running map[place]Node) {
	for _, n := range j.nodes {
		if m, ok := running[place{n.address, n.role}]; ok {
			m.handProcess(n)
		} else if !n.process.listens(n.address) {
			n.process = Process{}
		}
	}
}

// mayBe reports whether the node's role is r or may turn out to be.
func (n *Node) mayBe(r role) bool { return n.role == r || n.role == roleUnknown || r == roleUnknown }

// identify handles reliable evidence that n has an id, and returns the node that callers should
// use in its place. That is n itself, which then has the id; the node that had the id before,
// into which n is absorbed; or, if n has another role or another reliable id, a node of its
// own, because n is left from an earlier run.
func (o *Observer) identify(n *Node, id int32, from string) *Node {
	if roleOfID(id) == roleUnknown {
		return n
	}
	other := n.job.byID[id]
	switch {
	case !n.mayBe(roleOfID(id)) || n.id != id && !n.guessed():
		// n is left from an earlier run; the node at hand has taken over its port or PID.
		if other = n.job.withID(id, from); other != nil {
			n.handProcess(other)
		}
		return other
	case other == nil || other == n || other.guessed():
		n.setID(id, from)
		return n
	}
	if n.id != 0 {
		delete(n.job.byID, n.id)
	}
	o.absorb(other, n)
	return other
}

// handProcess moves n's process to another node of the same role.
func (n *Node) handProcess(to *Node) {
	if n.process.PID == 0 || n.process.Role != to.role.String() {
		return
	}
	n.job.byPID[n.process.PID], to.process, to.met = to, n.process, n.met
	n.process = Process{}
}

// guessed reports whether the node's id is unknown or may be wrong.
func (n *Node) guessed() bool { return n.id == 0 || n.idFrom == fromOrder || n.idFrom == fromKeys }
