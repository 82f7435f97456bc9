package agent

import (
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/observe"
)

// processes knows the host's PS-lite processes as of the last scan. It implements
// observe.Resolver.
//
// Any user can start thousands of processes that look like nodes, or open connections whose
// owner is never found. So only new processes are read, a process that does not become a node
// of a job is read more and more rarely, and budgets bound the time of all scans.
//
// It is safe for concurrent use. mu is not held during a scan; the maps that a scan uses are
// therefore replaced and never changed.
type processes struct {
	finder  *discover.Finder
	proc    fs.FS
	watched func(cgroup string) bool     // nil: all cgroups
	selects func(pod string) bool        // nil: processes of all pods, and of none
	leaves  func(*discover.Process) bool // nodes that opted out; nil: none
	now     func() time.Time             // for tests

	mu       sync.Mutex // guards the fields below
	snapshot *discover.Snapshot
	taken    time.Time         // when the snapshot was taken
	took     time.Duration     // CPU time that it took
	whole    time.Time         // when all processes are to be read again
	others   map[int]int       // by PID, how often a process was seen not to be a node; replaced, never changed
	nodes    map[int]progress  // by PID; replaced, never changed
	begun    map[int]time.Time // PIDs that executed a node lately, and when
	young    budget            // for scans because of nodes that are not settled
	all      budget            // for scans of all nodes because of a connection
}

// progress is how far a node has come in starting up.
type progress struct {
	looks    int       // scans of its sockets
	complete int       // of those, the last ones in a row in which it listened and its scheduler was known
	next     time.Time // time of the next scan
}

// settled reports whether the node's sockets need no more scans.
func (p progress) settled() bool { return p.complete >= seenNode }

// How often processes are scanned.
const (
	// lookAgain is the age of a snapshot from which an unknown connection triggers
	// a new one, as a multiple of the time that it took, so that scanning never
	// takes more than a third of the time.
	lookAgain = 2
	// A process that was seen seenOther times not to be a node is not read again. A node that
	// was complete seenNode times is settled.
	seenOther, seenNode = 2, 4
	// All processes are read again every wholeEvery, or so rarely that it takes less than one
	// part in wholeShare of a core.
	wholeEvery, wholeShare = 5 * time.Second, 2000
	// lookTakes exceeds the duration of any scan.
	lookTakes = time.Minute
	// A node that is not settled is scanned every time for its first youngLooks scans, then
	// with pauses that double from firstPause to longestPause.
	youngLooks, firstPause, longestPause = 20, time.Second, 30 * time.Second
)

func newProcesses(proc string, selects func(pod string) bool) *processes {
	p := &processes{
		selects: selects, now: time.Now,
		snapshot: &discover.Snapshot{}, begun: map[int]time.Time{},
		young: budget{share: 200}, all: budget{share: 1000},
	}
	p.readFrom(discover.OpenProc(proc))
	return p
}

// readFrom sets the /proc that is read.
func (p *processes) readFrom(proc fs.FS) { p.proc, p.finder = proc, discover.NewFinder(proc) }

// started returns when a process started, in nanoseconds since 1970, and false if it has ended.
func (p *processes) started(pid int) (at int64, ok bool) {
	after, ok := discover.Started(p.proc, pid)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil || !ok {
		return 0, false
	}
	return time.Now().UnixNano() - now.Nano() + int64(after), true
}

// wanted reports whether processes of a cgroup belong to watched jobs.
func (p *processes) wanted(cgroup string) bool {
	if p.watched != nil && !p.watched(cgroup) {
		return false
	}
	if p.selects == nil {
		return true
	}
	pod, _ := discover.Pod(cgroup)
	return p.selects(pod)
}

// filter returns wanted, or nil if every cgroup is wanted.
func (p *processes) filter() func(cgroup string) bool {
	if p.watched == nil && p.selects == nil {
		return nil
	}
	return p.wanted
}

// which says whose sockets a scan covers.
type which int

const (
	whoIsDue  which = iota // nodes that are not settled, as far as their next scan is due
	whoIsNew               // nodes that are not settled, due or not
	everybody              // all nodes
	anew                   // all nodes, and all processes are read again
)

// refresh takes a new snapshot and charges its time to the budget that it was taken for. It may
// take seconds on a large host. Concurrent calls wait for each other in the finder.
func (p *processes) refresh(w which) (*discover.Snapshot, error) {
	start := p.now()
	p.mu.Lock()
	others, nodes := p.others, p.nodes
	p.mu.Unlock()
	due := func(pid int) bool {
		n := nodes[pid]
		return w >= everybody || !n.settled() && (w == whoIsNew || !start.Before(n.next))
	}
	// CPU time: a scan that waits for a busy host costs the host nothing.
	cost := beginTiming()
	s, err := p.finder.Take(discover.Look{
		Watched: p.filter(), Leaves: p.leaves, Due: due, Anew: w == anew,
		Other: func(pid int) bool { return w != anew && others[pid] >= seenOther },
	})
	took := cost.end()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.snapshot, p.taken, p.took = s, p.now(), took
	switch w {
	case anew:
		// The pause is counted from the end of the scan, so that a slow scan cannot follow
		// itself.
		p.whole = p.taken.Add(max(wholeEvery, wholeShare*p.took))
	case everybody:
		p.all.spend(took)
	case whoIsNew, whoIsDue:
		p.young.spend(took)
	}
	seen := make(map[int]int, len(s.Others))
	for _, pid := range s.Others {
		seen[pid] = others[pid] + 1
	}
	p.see(seen, start)
	p.nodes = make(map[int]progress, len(s.Processes))
	for i := range s.Processes {
		found := &s.Processes[i]
		n, before := nodes[found.PID]
		// The finder looks at the sockets of a process that it has never looked at, due or not.
		if !before || due(found.PID) {
			n.looked(len(found.Listens) > 0 && found.Scheduler.IsValid(), start)
		}
		p.nodes[found.PID] = n
	}
	return s, nil
}

// looked records a scan of the node's sockets.
func (p *progress) looked(complete bool, at time.Time) {
	p.looks++
	if !complete {
		p.complete = 0 // not listening yet, or its scheduler is unknown
	} else {
		p.complete++
	}
	// The pause grows exponentially: a process that only pretends to be a node costs ever less.
	pause := time.Duration(0)
	if more := p.looks - youngLooks; more > 0 {
		pause = min(firstPause<<min(more-1, 8), longestPause)
	}
	p.next = at.Add(pause)
}

// glance returns the present processes. It lists PIDs, and takes a new snapshot only if it is
// time to, or if a node has come, is gone or is not settled. On an idle host it costs one
// listing of /proc.
func (p *processes) glance() (*discover.Snapshot, error) {
	start := p.now()
	p.mu.Lock()
	others, nodes, snapshot, whole := p.others, p.nodes, p.snapshot, !start.Before(p.whole)
	mayLook := p.young.allows(start)
	p.mu.Unlock()
	if whole {
		return p.refresh(anew)
	}
	pids, err := discover.PIDs(p.proc)
	if err != nil {
		return nil, err
	}
	seen := make(map[int]int, len(pids))
	there, due := 0, false
	for _, pid := range pids {
		n, node := nodes[pid]
		switch {
		case node:
			there++
			due = due || mayLook && !n.settled() && !start.Before(n.next)
		case others[pid] >= seenOther:
			seen[pid] = seenOther
		// A new node: the rest of the list need not be read, since refresh reads it again.
		case discover.IsNode(p.proc, pid):
			return p.refresh(whoIsDue)
		default:
			seen[pid] = others[pid] + 1
		}
	}
	// A node has ended, or one is due. Its connections must not be attributed to it any longer.
	if there < len(nodes) || due {
		return p.refresh(whoIsDue)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Another goroutine may have taken a snapshot meanwhile, whose view is newer than this one.
	if p.snapshot == snapshot {
		p.see(seen, start)
	}
	return p.snapshot, nil
}

// see records which processes are not nodes, according to a scan that began at start. A process
// that has executed a node since then may have been read before it did, and is left out. The
// caller holds p.mu.
func (p *processes) see(others map[int]int, start time.Time) {
	for pid, at := range p.begun {
		if !at.Before(start) {
			delete(others, pid)
		} else if start.Sub(at) > lookTakes {
			delete(p.begun, pid)
		}
	}
	p.others = others
}

// began records that a process has executed a node, whatever it was before.
func (p *processes) began(pid int) {
	p.finder.Forget(pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun[pid] = p.now()
	others, nodes := maps.Clone(p.others), maps.Clone(p.nodes) // a scan may be using them
	delete(others, pid)
	delete(nodes, pid)
	p.others, p.nodes = others, nodes
}

// Owner implements observe.Resolver. It scans again for an unknown connection if the budget
// allows. The reading thread waits meanwhile, and the ring buffer fills.
func (p *processes) Owner(local, peer netip.AddrPort) (observe.Process, bool) {
	p.mu.Lock()
	s := p.snapshot
	p.mu.Unlock()
	found, ok := s.Owner(local, peer)
	if !ok {
		if w, may := p.mayLookAgain(); may {
			var err error
			if s, err = p.refresh(w); err != nil {
				slog.Warn("scanning processes", "error", err)
				return observe.Process{}, false
			}
			found, ok = s.Owner(local, peer)
		}
	}
	if !ok {
		return observe.Process{}, false
	}
	return processOf(found), true
}

// mayLookAgain reports whether to scan again for the owner of an unknown connection, and how
// widely: all nodes if that budget has room, else only those that are not settled.
func (p *processes) mayLookAgain() (which, bool) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	// The last scan is too fresh for another one, whoever took it.
	case now.Sub(p.taken) <= lookAgain*p.took:
	case p.all.allows(now):
		return everybody, true
	case p.young.allows(now):
		for _, n := range p.nodes {
			// Otherwise no scan of unsettled nodes would tell anything new.
			if !n.settled() && n.looks < youngLooks {
				return whoIsNew, true
			}
		}
	}
	return whoIsDue, false
}

// job returns the job of the process that owns a connection, from the present snapshot.
func (p *processes) job(local, peer netip.AddrPort) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, ok := p.snapshot.Owner(local, peer)
	if !ok || !found.Scheduler.IsValid() {
		return "", false
	}
	return found.Scheduler.String(), true
}

func processOf(p *discover.Process) observe.Process {
	return observe.Process{
		PID: p.PID, Role: p.Role, Scheduler: p.Scheduler, Servers: p.Servers, Workers: p.Workers,
		Listens: p.Listens, Pod: p.Pod, Container: p.Container,
	}
}
