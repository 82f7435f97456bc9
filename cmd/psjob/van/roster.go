package van

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Groups of nodes, which add up to groups of several roles.
const (
	Servers  = int(pslite.ServerGroup)
	Workers  = int(pslite.WorkerGroup)
	Everyone = int(pslite.SchedulerGroup + pslite.ServerGroup + pslite.WorkerGroup)
)

// schedulerID is also the id of the group of the scheduler alone.
const schedulerID = int(pslite.SchedulerID)

// members returns the ids of a group's nodes: servers, workers, scheduler. The id of
// a single node is a group of one.
func members(group, servers, workers int) []int {
	if group > Everyone {
		return []int{group}
	}
	var ids []int
	if group&Servers != 0 {
		for r := range servers {
			ids = append(ids, int(pslite.ServerID(r)))
		}
	}
	if group&Workers != 0 {
		for r := range workers {
			ids = append(ids, int(pslite.WorkerID(r)))
		}
	}
	if group&schedulerID != 0 {
		ids = append(ids, schedulerID)
	}
	return ids
}

// A roster is the scheduler's list of registered nodes. It is a pure state machine:
// nodes in, ids out. Its owner's lock guards it.
type roster struct {
	servers, workers int
	nodes            []pslite.Node // in order of registration; once complete, with ids
	complete         bool
	late             []pslite.Node // workers that came when it was complete, at most as many as workers
	// aliases has ids of further customers of a process, which share the address and
	// connection of its first one: id -> id of the first. Such ids count at barriers,
	// but get no messages of their own.
	aliases map[int]int
	counts  map[int]int // barrier group -> how many have come
}

func newRoster(servers, workers int) *roster {
	return &roster{servers: servers, workers: workers, aliases: make(map[int]int), counts: make(map[int]int)}
}

func address(n pslite.Node) string { return net.JoinHostPort(n.Hostname, strconv.Itoa(int(n.Port))) }

// registerNode registers a node that has no id yet. With the last one all get their
// ids: ranks ascend by port within a host, hosts come in descending order, as PS-lite
// has it. Anything else would give a job's nodes other ranks with psjob's scheduler
// than with PS-lite's own. An error says what is wrong with the node and leaves the
// roster as it is.
func (r *roster) registerNode(n pslite.Node) (complete bool, err error) {
	count := 0
	for _, other := range r.nodes {
		if other.Role == n.Role {
			count++
		}
	}
	room, variable := r.servers, "DMLC_NUM_SERVER"
	if n.Role == pslite.Worker {
		room, variable = r.workers, "DMLC_NUM_WORKER"
	}
	switch {
	case n.Role != pslite.Server && n.Role != pslite.Worker:
		return false, fmt.Errorf("a node at %s registers with role %v: want server or worker", address(n), n.Role)
	case r.complete:
		return false, fmt.Errorf("a %v at %s registers, but the job is complete: was it restarted?", n.Role, address(n))
	// A job with more nodes than its variables say has two kinds of variables.
	case count >= room:
		return false, fmt.Errorf("a %v at %s registers, but %s=%d have already registered", n.Role, address(n), variable, room)
	case n.Hostname == "" || n.Port <= 0:
		return false, fmt.Errorf("a %v registers without an address (host %q, port %d)", n.Role, n.Hostname, n.Port)
	}
	r.nodes = append(r.nodes, n)
	if len(r.nodes) == r.servers+r.workers {
		r.assign()
		r.complete = true
	}
	return r.complete, nil
}

// awaitPlace notes a worker that registers when the job is complete: it may take the place of one that
// has died. It reports false for a node that cannot. A server could not: its values are gone.
func (r *roster) awaitPlace(n pslite.Node) bool {
	if n.Role != pslite.Worker || n.Hostname == "" || n.Port <= 0 || len(r.late) >= r.workers {
		return false
	}
	r.late = append(r.late, n)
	return true
}

// replaceDead gives a worker that waits for a place the one of a worker that has died, and returns its
// record. The newest comes first: one that has waited for long may have given up.
func (r *roster) replaceDead(dead func(id int) bool) (n pslite.Node, ok bool) {
	if len(r.late) == 0 {
		return n, false
	}
	for i := range r.nodes {
		if old := &r.nodes[i]; old.Role == pslite.Worker && dead(int(old.ID)) {
			n, r.late = r.late[len(r.late)-1], r.late[:len(r.late)-1]
			n.ID, n.IsRecovery = old.ID, true
			*old = n
			return n, true
		}
	}
	return n, false
}

// assign sorts the nodes and gives them their ids. Servers and workers are numbered
// independently, in the order of their addresses: hosts as strings, descending, and
// ports ascending. Which process gets which rank so does not depend on the order in
// which they registered, at least on several hosts with fixed ports.
func (r *roster) assign() {
	// Stable: customers of one process have the same address, and are numbered as
	// they came.
	slices.SortStableFunc(r.nodes, func(a, b pslite.Node) int {
		return cmp.Or(cmp.Compare(b.Hostname, a.Hostname), cmp.Compare(a.Port, b.Port))
	})
	first := make(map[string]int32) // address -> id
	servers, workers := 0, 0
	for i := range r.nodes {
		n := &r.nodes[i]
		id := pslite.WorkerID(workers)
		if n.Role == pslite.Server {
			id = pslite.ServerID(servers)
			servers++
		} else {
			workers++
		}
		// PS-lite gives such a customer a rank of its own, and the node record the id
		// of the process.
		if own, shared := first[address(*n)]; shared {
			r.aliases[int(id)] = int(own)
			id = own
		} else {
			first[address(*n)] = id
		}
		n.ID = id
	}
}

// addressees returns the group's nodes that have a connection of their own.
func (r *roster) addressees(group int) []int {
	return slices.DeleteFunc(members(group, r.servers, r.workers), func(id int) bool {
		_, alias := r.aliases[id]
		return alias
	})
}

// arrive counts one more node at a group's barrier and reports whether it was the
// last. Which nodes have come is not recorded, as in PS-lite: each comes once.
func (r *roster) arrive(group int) (released bool, err error) {
	if group <= 0 || group > Everyone {
		return false, fmt.Errorf("a node waits at the barrier of group %d: want 1 to %d", group, Everyone)
	}
	r.counts[group]++
	// Aliases count: each customer of a process comes to the barrier.
	if r.counts[group] < len(members(group, r.servers, r.workers)) {
		return false, nil
	}
	r.counts[group] = 0
	return true, nil
}

// missing says how many nodes have registered, and how many are expected.
func (r *roster) missing() string {
	servers, workers := 0, 0
	for _, n := range r.nodes {
		if n.Role == pslite.Server {
			servers++
		} else {
			workers++
		}
	}
	return fmt.Sprintf("%d of %d servers and %d of %d workers have registered", servers, r.servers, workers, r.workers)
}
