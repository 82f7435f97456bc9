package agent

import (
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/observe"
)

// processes knows the host's PS-lite processes, as of the last look around.
//
// Anybody can have a thousand processes that look like nodes, and connections whose
// owner is not to be found. So only new processes are read, one that does not
// become a node of a job is read ever more seldom, and a budget bounds the time of
// it all.
type processes struct {
	finder  *discover.Finder
	proc    fs.FS
	watched func(cgroup string) bool     // nil: those of all cgroups
	selects func(pod string) bool        // nil: those of all pods, and of none
	leaves  func(*discover.Process) bool // nodes that are not watched; nil: none
	now     func() time.Time

	mu       sync.Mutex // guards what follows
	snapshot *discover.Snapshot
	taken    time.Time
	took     time.Duration
	whole    time.Time         // when all processes are looked at next
	others   map[int]int       // how often a process was seen not to be a node; never changed, but replaced
	nodes    map[int]progress  // of those that were seen to be; never changed, but replaced
	begun    map[int]time.Time // nodes that began to run lately
	young    budget            // for nodes that are not settled
	all      budget            // for all nodes, because of a connection
}

// progress is how far a node has come, as far as it was seen.
type progress struct {
	looks    int       // at its sockets
	complete int       // of those, since it listens and its scheduler is known
	next     time.Time // look
}

func (p progress) settled() bool { return p.complete >= seenNode }

// How processes are looked at.
const (
	// lookAgain is the age of a snapshot from which an unknown connection triggers
	// a new one, as a multiple of the time that it took, so that scanning never
	// takes more than a third of the time.
	lookAgain = 2
	// A process that was seen so often not to be a node is let be, and of a
	// node that was seen so often it is known where it listens.
	seenOther, seenNode = 2, 4
	// All processes are looked at this often, or as seldom as keeps that below
	// one part in wholeShare of a core.
	wholeEvery, wholeShare = 5 * time.Second, 400
	// lookTakes is longer than looking around ever takes.
	lookTakes = time.Minute
	// A node that has not come so far is looked at every time at first, and then
	// ever more seldom.
	youngLooks, firstPause, longestPause = 20, time.Second, 30 * time.Second
)

func newProcesses(proc string, selects func(pod string) bool) *processes {
	p := &processes{
		selects: selects, now: time.Now,
		snapshot: &discover.Snapshot{}, begun: map[int]time.Time{},
		young: budget{share: 20}, all: budget{share: 100},
	}
	p.readFrom(discover.OpenProc(proc))
	return p
}

// readFrom has the processes read from proc.
func (p *processes) readFrom(proc fs.FS) { p.proc, p.finder = proc, discover.NewFinder(proc) }

// wanted reports whether processes of a cgroup are those of watched jobs.
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

// filter is wanted, nil where all are.
func (p *processes) filter() func(cgroup string) bool {
	if p.watched == nil && p.selects == nil {
		return nil
	}
	return p.wanted
}

// which says whose sockets a look is for.
type which int

const (
	whoIsDue  which = iota // nodes that have not come so far, if it is time
	whoIsNew               // nodes that have not settled, even if it is not
	everybody              // all nodes
	anew                   // all nodes, and whoever may have become one
)

// refresh takes a new snapshot.
func (p *processes) refresh(w which) (*discover.Snapshot, error) {
	start := p.now()
	p.mu.Lock()
	others, nodes := p.others, p.nodes
	p.mu.Unlock()
	due := func(pid int) bool {
		n := nodes[pid]
		return w >= everybody || !n.settled() && (w == whoIsNew || !start.Before(n.next))
	}
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
		if !before || due(found.PID) {
			n.looked(len(found.Listens) > 0 && found.Scheduler.IsValid(), start)
		}
		p.nodes[found.PID] = n
	}
	return s, nil
}

// looked notes a look at a node's sockets.
func (p *progress) looked(complete bool, at time.Time) {
	p.looks++
	if !complete {
		p.complete = 0 // it will listen soon, and know its scheduler
	} else {
		p.complete++
	}
	pause := time.Duration(0)
	if more := p.looks - youngLooks; more > 0 {
		pause = min(firstPause<<min(more-1, 8), longestPause)
	}
	p.next = at.Add(pause)
}

// glance returns what processes there are, and takes a new snapshot only if it
// is time to, or a node has come, gone or not come so far yet.
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
		case discover.IsNode(p.proc, pid):
			return p.refresh(whoIsDue)
		default:
			seen[pid] = others[pid] + 1
		}
	}
	if there < len(nodes) || due {
		return p.refresh(whoIsDue)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.snapshot == snapshot {
		p.see(seen, start)
	}
	return p.snapshot, nil
}

// see keeps how often processes were seen not to be nodes, by a look around that
// began at start. What has begun to run a node since may have been looked at
// before it did: it is not kept.
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

// began notes that a process has begun to run a node, whatever it was before.
func (p *processes) began(pid int) {
	p.finder.Forget(pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun[pid] = p.now()
	others, nodes := maps.Clone(p.others), maps.Clone(p.nodes) // a look around may be using them
	delete(others, pid)
	delete(nodes, pid)
	p.others, p.nodes = others, nodes
}

// Owner implements observe.Resolver.
func (p *processes) Owner(local, peer netip.AddrPort) (observe.Process, bool) {
	p.mu.Lock()
	s := p.snapshot
	p.mu.Unlock()
	found, ok := s.Owner(local, peer)
	if !ok {
		if w, may := p.mayLookAgain(); may {
			var err error
			if s, err = p.refresh(w); err != nil {
				slog.Warn("looking for processes", "error", err)
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

// mayLookAgain reports whether a scan for the owner of an unknown connection is
// due: any node where the budget has room for that, else a new one.
func (p *processes) mayLookAgain() (which, bool) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case now.Sub(p.taken) <= lookAgain*p.took:
	case p.all.allows(now):
		return everybody, true
	case p.young.allows(now):
		for _, n := range p.nodes {
			if !n.settled() && n.looks < youngLooks {
				return whoIsNew, true
			}
		}
	}
	return whoIsDue, false
}

// job returns the job of the process that owns a connection, from the present
// snapshot.
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
