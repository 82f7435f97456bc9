package discover

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// MaxNodes is how many nodes a snapshot has; those of the lowest process numbers.
const MaxNodes = 8192

// A Finder takes snapshots of one /proc. What a process's environment says is
// read once; its sockets are looked for where the caller thinks that there may
// be new ones. It is safe for use by several goroutines, which wait for each
// other.
type Finder struct {
	proc fs.FS
	most int // nodes

	mu    sync.Mutex // held for as long as a look takes; before changed
	nodes map[int]*node

	changed sync.Mutex // guards what follows; held briefly
	stale   map[int]bool
}

// node is the cached state of a process.
type node struct {
	began     string  // see began
	described Process // as describe returned it
	// Of the last look at its sockets:
	looked  bool
	current Process
	owned   [][2]netip.AddrPort // local and peer address of its connections
}

// NewFinder returns a Finder that remembers nothing yet.
func NewFinder(proc fs.FS) *Finder {
	return &Finder{proc: proc, most: MaxNodes, nodes: map[int]*node{}, stale: map[int]bool{}}
}

// A Look says what a snapshot is to be taken of.
type Look struct {
	// Watched, where not nil, accepts cgroups (paths from the mount's root):
	// processes in others are left out. Addresses alone do not tell jobs apart,
	// since two network namespaces may have the same.
	Watched func(cgroup string) bool
	// Leaves, where not nil, tells nodes that do not want to be watched.
	Leaves func(*Process) bool
	// Other, where not nil, tells processes that need not be looked at.
	Other func(pid int) bool
	// Due, where not nil, says whose sockets are looked at again; those of the
	// others are taken to be what they were.
	Due func(pid int) bool
	// Anew drops cached environments of all processes: exec may have changed one.
	Anew bool
}

// Forget has a process read again by the next look: it runs another program.
// A look that is under way may have read it before or after.
func (f *Finder) Forget(pid int) {
	f.changed.Lock()
	defer f.changed.Unlock()
	f.stale[pid] = true
}

// takeStale reports whether a process was to be forgotten, once.
func (f *Finder) takeStale(pid int) bool {
	f.changed.Lock()
	defer f.changed.Unlock()
	stale := f.stale[pid]
	delete(f.stale, pid)
	return stale
}

// dropStale forgets those of the processes that are no more.
func (f *Finder) dropStale(pids []int) {
	f.changed.Lock()
	defer f.changed.Unlock()
	for pid := range f.stale {
		if _, there := slices.BinarySearch(pids, pid); !there {
			delete(f.stale, pid)
		}
	}
}

// Take reads the processes. Those that end meanwhile, or that may not be looked
// into, are left out; an error says that proc itself cannot be read.
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
			s.LeftOut++
			s.Others = append(s.Others, pid)
		default:
			known[pid] = n
		}
	}
	f.nodes = known
	f.dropStale(pids)
	f.lookAtSockets(l.Due)
	for _, pid := range slices.Sorted(maps.Keys(known)) {
		n := known[pid]
		for _, ends := range n.owned {
			s.owners[ends] = len(s.Processes)
		}
		s.Processes = append(s.Processes, n.current)
	}
	return s, nil
}

// remembered returns the node that a process is, read if need be; nil where it
// is none.
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
	if err != nil || !ok {
		return nil, err
	}
	if n != nil && n.began == at && n.described.same(&p) {
		return n, nil // with the sockets that it is known to have
	}
	return &node{began: at, described: p, current: p}, nil
}

// same reports whether two descriptions of a process say the same.
func (p *Process) same(o *Process) bool {
	return p.Command == o.Command && p.Role == o.Role && p.Scheduler == o.Scheduler && p.SchedulerName == o.SchedulerName &&
		p.Servers == o.Servers && p.Workers == o.Workers && p.Van == o.Van && p.Local == o.Local &&
		maps.Equal(p.Settings, o.Settings) && p.UID == o.UID && p.Owned == o.Owned &&
		p.Cgroup == o.Cgroup && p.netns == o.netns && slices.Equal(p.Listens, o.Listens)
}

// Bounds of one look at sockets. Descriptors are inherited, so a process pays
// nothing for their number.
const (
	maxDescriptors = 1 << 18 // of all processes
	maxOfProcess   = 1 << 14
	maxConnections = 1 << 18 // that are remembered, of all processes
	maxTables      = 4       // processes that are asked for the table of one network namespace
)

// held are the sockets of one network namespace: inode to holder.
type held map[uint64][]int

// lookAtSockets finds the sockets of the processes that are due, and of those
// that were never looked at. Each network namespace's table is read once, and
// not at all where none of them holds a socket.
func (f *Finder) lookAtSockets(due func(pid int) bool) {
	spaces := map[string]held{}
	room, connections := maxDescriptors, maxConnections
	var looked []*node
	for pid, n := range f.nodes {
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

// readTable reads the sockets of one network namespace, as one of its processes
// sees them, and gives each to its holders.
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

// own gives the node its sockets, and a bounded number of its connections.
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
