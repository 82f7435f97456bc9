package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/observe"
)

// processes knows the host's PS-lite processes, as of the last look around.
//
// To look at every process of a host takes tens of milliseconds, most of it for
// those that are no concern of ours. So only new ones are looked at, and all of
// them now and then: a process may become a node by exec.
type processes struct {
	proc    fs.FS
	watched func(cgroup string) bool // nil: those of all cgroups
	selects func(pod string) bool    // nil: those of all pods, and of none

	mu       sync.Mutex
	snapshot *discover.Snapshot
	taken    time.Time
	took     time.Duration
	whole    time.Time         // when all processes are looked at next
	others   map[int]int       // how often a process was seen not to be a node; never changed, but replaced
	nodes    map[int]int       // how often one was seen that is
	begun    map[int]time.Time // nodes that began to run lately
}

// How processes are looked at.
const (
	// lookAgain is how old a snapshot must be before an unknown connection
	// makes for a new one: so many times as long as it took to take, so that
	// looking around never takes more than a third of the time.
	lookAgain = 2
	// A process that was seen so often not to be a node is let be, and of a
	// node that was seen so often it is known where it listens.
	seenOther, seenNode = 2, 4
	// All processes are looked at this often, or as seldom as keeps that below
	// one part in wholeShare of a core.
	wholeEvery, wholeShare = 5 * time.Second, 400
	// lookTakes is longer than looking around ever takes.
	lookTakes = time.Minute
)

func newProcesses(proc string, selects func(pod string) bool) *processes {
	return &processes{proc: os.DirFS(proc), selects: selects, snapshot: &discover.Snapshot{}, begun: map[int]time.Time{}}
}

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

// refresh takes a new snapshot, of all processes or without those that are
// known not to be nodes.
func (p *processes) refresh(all bool) (*discover.Snapshot, error) {
	start := time.Now()
	p.mu.Lock()
	others := p.others
	p.mu.Unlock()
	s, err := discover.Take(p.proc, p.filter(), func(pid int) bool { return !all && others[pid] >= seenOther })
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.snapshot, p.taken, p.took = s, time.Now(), time.Since(start)
	if all {
		p.whole = p.taken.Add(max(wholeEvery, wholeShare*p.took))
	}
	seen := make(map[int]int, len(s.Others))
	for _, pid := range s.Others {
		seen[pid] = others[pid] + 1
	}
	p.see(seen, start)
	nodes := make(map[int]int, len(s.Processes))
	for i := range s.Processes {
		pid := s.Processes[i].PID
		if nodes[pid] = p.nodes[pid] + 1; len(s.Processes[i].Listens) == 0 || !s.Processes[i].Scheduler.IsValid() {
			nodes[pid] = 1 // it will listen soon, and know its scheduler
		}
	}
	p.nodes = nodes
	return s, nil
}

// glance returns what processes there are, and takes a new snapshot only if it
// is time to, or a node has come, gone or only just come.
func (p *processes) glance() (*discover.Snapshot, error) {
	start := time.Now()
	p.mu.Lock()
	others, nodes, snapshot, whole := p.others, p.nodes, p.snapshot, !start.Before(p.whole)
	p.mu.Unlock()
	if whole {
		return p.refresh(true)
	}
	pids, err := discover.PIDs(p.proc)
	if err != nil {
		return nil, err
	}
	seen := make(map[int]int, len(pids))
	settled := 0
	for _, pid := range pids {
		switch {
		case nodes[pid] >= seenNode:
			settled++
		case others[pid] >= seenOther:
			seen[pid] = seenOther
		case nodes[pid] > 0 || discover.IsNode(p.proc, pid):
			return p.refresh(false)
		default:
			seen[pid] = others[pid] + 1
		}
	}
	if settled < len(nodes) {
		return p.refresh(false)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun[pid] = time.Now()
	others := maps.Clone(p.others) // a look around may be using it
	delete(others, pid)
	p.others = others
}

// Owner implements observe.Resolver.
func (p *processes) Owner(local, peer netip.AddrPort) (observe.Process, bool) {
	p.mu.Lock()
	s, old := p.snapshot, time.Since(p.taken) > lookAgain*p.took
	p.mu.Unlock()
	found, ok := s.Owner(local, peer)
	if !ok && old {
		var err error
		if s, err = p.refresh(false); err != nil {
			slog.Warn("looking for processes", "error", err)
			return observe.Process{}, false
		}
		found, ok = s.Owner(local, peer)
	}
	if !ok {
		return observe.Process{}, false
	}
	return processOf(found), true
}

// job returns the job of the process that owns a connection, by what is known
// already.
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
		Listens: p.Listens, Command: p.Command, Pod: p.Pod, Container: p.Container,
	}
}

// cgroupPath returns the directory of a cgroup that a user named: a path of a
// directory, or one below the mount of cgroup v2.
func (a *Agent) cgroupPath(name string) string {
	if strings.HasPrefix(name, a.opts.CgroupRoot) {
		return name
	}
	below := filepath.Join(a.opts.CgroupRoot, name)
	if _, err := os.Stat(below); err == nil {
		return below
	}
	return name
}

// onlyWatched leaves out, from now on, the processes that are not in a watched
// cgroup: where the user named the cgroups, no others belong to the jobs.
func (a *Agent) onlyWatched() {
	for _, path := range a.attached {
		if !within(path, a.opts.CgroupRoot) {
			slog.Warn("the processes of a cgroup cannot be told from others: it is not below the mount of cgroup v2",
				"cgroup", path, "mount", a.opts.CgroupRoot)
			return
		}
	}
	a.procs.watched = func(cgroup string) bool { return a.watches(filepath.Join(a.opts.CgroupRoot, cgroup)) }
}

func (a *Agent) attachPID(pid int) error {
	group, err := discover.CgroupOf(a.procs.proc, pid)
	if err != nil {
		return fmt.Errorf("--pid %d: %w", pid, err)
	}
	path := filepath.Join(a.opts.CgroupRoot, group)
	if a.watches(path) {
		return nil
	}
	return a.attach(path)
}

// watches reports whether the cgroup, or one above it, is watched.
func (a *Agent) watches(path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.attached, func(other string) bool { return within(path, other) })
}

func within(path, other string) bool {
	return path == other || strings.HasPrefix(path, strings.TrimSuffix(other, "/")+"/")
}

// attach watches a cgroup. Those below it that are watched already are let go,
// or their segments would be seen twice.
func (a *Agent) attach(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var below []string
	for _, other := range a.attached {
		if within(other, path) {
			below = append(below, other)
		}
	}
	for _, other := range below {
		if err := a.capture.Detach(other); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		a.attached = slices.DeleteFunc(a.attached, func(s string) bool { return s == other })
	}
	if err := a.capture.Attach(path); err != nil {
		return err
	}
	a.attached = append(a.attached, path)
	a.ready = nil
	slog.Info("watching", "cgroup", path)
	return nil
}
