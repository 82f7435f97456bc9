package discover

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// MaxNodes bounds the nodes in a snapshot. Those with the lowest PIDs are kept, so the choice
// is stable while processes come and go.
const MaxNodes = 8192

// A Finder takes snapshots of one /proc. It reads each process's environment once, and looks
// for its sockets only where the caller expects new ones, so that a snapshot costs little more
// than listing /proc.
//
// It is safe for concurrent use; calls of Take wait for each other. mu is taken before changed.
// The second lock exists so that Forget, which is called while exec events are read, never
// waits for a snapshot.
type Finder struct {
	proc fs.FS
	most int // nodes

	mu    sync.Mutex    // held throughout Take; guards nodes
	nodes map[int]*node // by PID; those of the last snapshot, at most MaxNodes

	changed sync.Mutex   // guards stale; held briefly
	stale   map[int]bool // PIDs whose cached node must be read again
}

// node is the cached state of a process. A node is replaced, not updated, when the process
// turns out to be another one.
type node struct {
	began     string  // start time, see func began
	described Process // as describe returned it
	// The result of the last look at its sockets; valid once looked is true.
	looked  bool
	current Process             // described, with Listens and Scheduler as the sockets say
	owned   [][2]netip.AddrPort // local and peer address of its connections
}

// NewFinder returns a Finder that remembers nothing yet.
func NewFinder(proc fs.FS) *Finder {
	return &Finder{proc: proc, most: MaxNodes, nodes: map[int]*node{}, stale: map[int]bool{}}
}

// A Look says what a snapshot covers and what may be taken from the cache.
type Look struct {
	// Watched, if not nil, selects cgroups by their path from the mount's root; processes in
	// others are left out. The cgroup decides because addresses alone do not tell jobs apart:
	// two network namespaces may have the same.
	Watched func(cgroup string) bool
	// Leaves, if not nil, reports nodes that opted out of being watched.
	Leaves func(*Process) bool
	// Other, if not nil, reports processes known not to be nodes, which are then not read.
	Other func(pid int) bool
	// Due, if not nil, reports the processes whose sockets are looked up again. The others keep
	// the sockets of the last look.
	Due func(pid int) bool
	// Anew reads the environments of all processes again, because exec events were missed.
	Anew bool
}

// Forget makes the next snapshot read a process again, because it has executed another program.
// A snapshot in progress may have read it before or after. It does not wait for one.
func (f *Finder) Forget(pid int) {
	f.changed.Lock()
	defer f.changed.Unlock()
	f.stale[pid] = true
}

// takeStale reports whether a process is to be read again, and clears that mark before the
// read: an exec during the read marks it again.
func (f *Finder) takeStale(pid int) bool {
	f.changed.Lock()
	defer f.changed.Unlock()
	stale := f.stale[pid]
	delete(f.stale, pid)
	return stale
}

// dropStale clears the marks of processes that have ended. pids must be sorted.
func (f *Finder) dropStale(pids []int) {
	f.changed.Lock()
	defer f.changed.Unlock()
	for pid := range f.stale {
		if _, there := slices.BinarySearch(pids, pid); !there {
			delete(f.stale, pid)
		}
	}
}

// Take takes a snapshot. Processes that end meanwhile, or that may not be read, are left out.
// An error says that proc itself cannot be read, or that descriptors or memory ran out; the
// cache is then unchanged. The callbacks of l run while the Finder is locked and must not call
// it.
func (f *Finder) Take(l Look) (*Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pids, err := PIDs(f.proc)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{owners: map[[2]netip.AddrPort]int{}}
	known := make(map[int]*node, len(f.nodes))
	for _, pid := range sorted(pids) {
		if l.Other != nil && l.Other(pid) {
			s.Others = append(s.Others, pid)
			continue
		}
		n, err := f.remembered(pid, l.Anew)
		switch {
		case err != nil:
			return nil, fmt.Errorf("reading the process table: %w", err)
		case n == nil || l.Watched != nil && (n.described.Cgroup == "" || !l.Watched(n.described.Cgroup)) || l.Leaves != nil && l.Leaves(&n.described):
			s.Others = append(s.Others, pid)
		case len(known) == f.most:
			// Recorded as other, so that the next snapshots need not read it again.
			s.LeftOut++
			s.Others = append(s.Others, pid)
		default:
			known[pid] = n
		}
	}
	f.nodes = known
	f.dropStale(pids)
	f.lookAtSockets(l.Due)
	// In order of PID, so that of processes that share a socket the youngest usually owns it:
	// forked workers inherit their parent's.
	for _, pid := range slices.Sorted(maps.Keys(known)) {
		n := known[pid]
		for _, ends := range n.owned {
			s.owners[ends] = len(s.Processes)
		}
		s.Processes = append(s.Processes, n.current)
	}
	return s, nil
}

// remembered returns the node of a process, from the cache if it is still the same process. It
// returns nil if the process is no node.
func (f *Finder) remembered(pid int, anew bool) (*node, error) {
	n := f.nodes[pid]
	if f.takeStale(pid) {
		n = nil
	}
	at := began(f.proc, pid)
	if n != nil && n.began == at && !anew {
		return n, nil
	}
	p, ok, err := describe(f.proc, pid)
	// The process may have ended in the middle, and its number be another one's by now: the
	// environment of one must not count for the cgroup of the other.
	for now := began(f.proc, pid); err == nil && ok && now != at; now = began(f.proc, pid) {
		at = now
		p, ok, err = describe(f.proc, pid)
	}
	if err != nil || !ok {
		return nil, err
	}
	// The same process after an exec that changed nothing, or a second read. Keeping the node
	// avoids another search for its sockets.
	if n != nil && n.began == at && n.described.same(&p) {
		return n, nil // with the sockets that it is known to have
	}
	return &node{began: at, described: p, current: p}, nil
}

// same compares everything that describe reads, except what follows from the cgroup.
func (p *Process) same(o *Process) bool {
	return p.Command == o.Command && p.Role == o.Role && p.Scheduler == o.Scheduler && p.SchedulerName == o.SchedulerName &&
		p.Servers == o.Servers && p.Workers == o.Workers && p.Van == o.Van && p.Local == o.Local &&
		maps.Equal(p.Settings, o.Settings) && p.UID == o.UID && p.Owned == o.Owned &&
		p.Cgroup == o.Cgroup && p.netns == o.netns && slices.Equal(p.Listens, o.Listens)
}

// Bounds of one look at sockets. A process can hold very many descriptors at no cost to itself
// (they are inherited), and must not make the agent pay for them.
const (
	maxDescriptors = 1 << 18 // of all processes
	maxOfProcess   = 1 << 14 // descriptors of one process
	maxConnections = 1 << 18 // connections remembered, of all processes
	maxTables      = 4       // processes tried for the table of one network namespace
)

// held maps the socket inodes of one network namespace to the PIDs that hold them.
type held map[uint64][]int

// lookAtSockets finds the sockets of the processes that are due, and of those never looked at.
// It goes in two steps, from descriptors to inodes and from inodes to addresses, so that the
// table of each network namespace is read once for all its processes, and not at all where none
// of them holds a socket. The caller holds f.mu.
func (f *Finder) lookAtSockets(due func(pid int) bool) {
	spaces := map[string]held{}
	room, connections := maxDescriptors, maxConnections
	var looked []*node
	for pid, n := range f.nodes {
		// Connections of processes that are not looked at stay remembered and count against the
		// bound.
		if n.looked && due != nil && !due(pid) || room <= 0 {
			connections -= len(n.owned)
			continue
		}
		looked = append(looked, n)
		n.looked, n.current, n.owned = true, n.described, nil
		found, descriptors := inodes(f.proc, pid, min(room, maxOfProcess))
		room -= descriptors
		for _, inode := range found {
			space := spaces[n.described.netns]
			if space == nil {
				space = held{}
				spaces[n.described.netns] = space
			}
			space[inode] = append(space[inode], pid)
		}
	}
	tables := map[int][]socket{} // by process
	for _, space := range spaces {
		f.readTable(space, tables)
	}
	for _, n := range looked {
		table := tables[n.described.PID]
		n.own(table, max(connections, 0))
		connections -= len(n.owned)
		n.current.locate(f.proc, table)
	}
}

// readTable reads the socket table of one network namespace by way of one of its processes, and
// adds each socket to the tables of its holders. It tries a few processes, since one may end
// before its table is read; sockets of a namespace whose processes all fail are missing from
// this snapshot.
func (f *Finder) readTable(space held, tables map[int][]socket) {
	some := map[int]bool{}
	for _, holders := range space {
		some[holders[0]] = true
	}
	for i, pid := range slices.Sorted(maps.Keys(some)) {
		if i == maxTables {
			return
		}
		read := readSockets(f.proc, pid, func(inode uint64) bool { return space[inode] != nil }, func(s socket) {
			for _, holder := range space[s.inode] {
				tables[holder] = append(tables[holder], s)
			}
		})
		if read {
			return // else that process has ended
		}
	}
}

// own derives the node's addresses and connections from its sockets. A socket that listens on
// the wildcard address is reachable at each address that the node is known to have. At most
// most connections are remembered.
func (n *node) own(table []socket, most int) {
	p := &n.current
	var ips []netip.Addr
	for _, a := range p.Listens { // DMLC_NODE_HOST
		ips = append(ips, a.Addr())
	}
	p.Listens = nil
	var ports []uint16
	for _, k := range table {
		switch {
		case k.listening && k.local.Addr().IsUnspecified():
			ports = append(ports, k.local.Port())
		case k.listening:
			p.Listens = append(p.Listens, k.local)
		default:
			ips = append(ips, k.local.Addr())
			if len(n.owned) == most {
				continue
			}
			n.owned = append(n.owned, [2]netip.AddrPort{k.local, k.peer})
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	ips = slices.Compact(ips)
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		for _, ip := range ips {
			if len(p.Listens) < maxListens {
				p.Listens = append(p.Listens, netip.AddrPortFrom(ip, port))
			}
		}
	}
	slices.SortFunc(p.Listens, netip.AddrPort.Compare)
	p.Listens = slices.Compact(p.Listens)
}

// maxListens bounds the addresses of a process that listens on many ports and
// has many addresses.
const maxListens = 1024
