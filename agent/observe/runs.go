package observe

import (
	"maps"
	"net/netip"
	"slices"
)

// A job may run again with the same scheduler's address: other processes are its
// nodes then, and have ports, and numbers, that those before them had. A node's
// identity by address holds until better evidence contradicts it.

// absorb makes n the node that m turned out to be: a job's second run has new
// processes for the same ids. What m did before it had an id is left out.
func (o *Observer) absorb(n, m *Node) {
	j := n.job
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

// listening returns the node that listens at the address and may have that
// role. A job's next run deals the ports that one before it used again: one of
// another role does not listen there any more.
func (j *Job) listening(a netip.AddrPort, r role) *Node {
	n := j.byAddress[a]
	if n != nil && !n.mayBe(r) {
		j.removeNode(a)
		return nil
	}
	return n
}

// removeNode notes that the node at the address, if there is one, is there no more.
func (j *Job) removeNode(a netip.AddrPort) {
	if n := j.byAddress[a]; n != nil && n.address == a {
		n.address = netip.AddrPort{}
	}
	delete(j.byAddress, a)
}

// prune forgets where nodes of earlier runs listened, and their processes' numbers.
// Those at these addresses are there now.
func (j *Job) prune(now map[netip.AddrPort]bool) {
	for a, n := range j.byAddress {
		if !now[a] && a != j.Scheduler && !slices.Contains(n.process.Listens, a) {
			j.removeNode(a)
		}
	}
	maps.DeleteFunc(j.byPID, func(pid int, n *Node) bool { return n.process.PID != pid })
}

// place is where a node of a role listens.
type place struct {
	at   netip.AddrPort
	role role
}

// processes returns the nodes that run on this host: of those in one place, which
// are of several runs, the one that was met last.
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

// giveProcesses gives each node the process that listens at its address, and takes
// away one that cannot be its own any more.
func (j *Job) giveProcesses(running map[place]Node) {
	for _, n := range j.nodes {
		if m, ok := running[place{n.address, n.role}]; ok {
			m.handProcess(n)
		} else if !n.process.listens(n.address) {
			n.process = Process{}
		}
	}
}

func (n *Node) mayBe(r role) bool { return n.role == r || n.role == roleUnknown || r == roleUnknown }

// identify returns the node that reliable evidence gives that id, and the node that
// was taken for n so far: n, which then has the id, or the node that had it before.
func (o *Observer) identify(n *Node, id int32, from string) *Node {
	if roleOfID(id) == roleUnknown {
		return n
	}
	other := n.job.byID[id]
	switch {
	case !n.mayBe(roleOfID(id)) || n.id != id && !n.guessed():
		// n is of an earlier run, and this one has its port, or its number.
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

// handProcess makes n's process, if it has one, another node's.
func (n *Node) handProcess(to *Node) {
	if n.process.PID == 0 || n.process.Role != to.role.String() {
		return
	}
	n.job.byPID[n.process.PID], to.process, to.met = to, n.process, n.met
	n.process = Process{}
}

// guessed reports whether the node's id, if it has one, may be wrong.
func (n *Node) guessed() bool { return n.id == 0 || n.idFrom == fromOrder || n.idFrom == fromKeys }
