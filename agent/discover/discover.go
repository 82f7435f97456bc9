// Package discover finds the PS-lite processes of a host: who has DMLC_* in
// its environment, in which cgroup and pod it runs, where it listens and to
// whom it is connected.
//
// In comes a /proc file system (the host's, or a recorded tree); out comes a
// [Snapshot] of the whole. The agent takes one every now and then, and when it
// meets a connection whose owner it does not know. Nothing is remembered here from
// one snapshot to the next.
package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A Process is one that runs a PS-lite node.
type Process struct {
	PID       int
	Command   string         // its arguments
	Role      string         // DMLC_ROLE
	Scheduler netip.AddrPort // its address is not valid until it is found: see SchedulerName
	// SchedulerName is DMLC_PS_ROOT_URI as the process has it.
	SchedulerName string
	Servers       int    // DMLC_NUM_SERVER; 0 where it is not set
	Workers       int    // DMLC_NUM_WORKER
	Van           string // DMLC_PS_VAN_TYPE
	Local         bool   // DMLC_LOCAL: unix sockets, nothing to be seen on TCP
	Cgroup        string // cgroup v2 path, from the mount's root
	Pod           string // Kubernetes pod UID
	Container     string // container id
	// Listens are the addresses at which it may be reached: those of its
	// sockets, with each port that it listens on.
	Listens []netip.AddrPort

	netns string
}

// A Snapshot is the PS-lite processes of a host at one moment.
type Snapshot struct {
	Processes []Process
	// Others are the processes that are none, by what was seen or told.
	Others []int
	owners map[[2]netip.AddrPort]int // index in Processes by local, peer address
}

// Owner returns the process whose socket is bound to local and connected to
// peer.
func (s *Snapshot) Owner(local, peer netip.AddrPort) (*Process, bool) {
	i, ok := s.owners[[2]netip.AddrPort{local, peer}]
	if !ok {
		return nil, false
	}
	return &s.Processes[i], true
}

// Take reads the processes below proc, a /proc file system. Processes that end
// meanwhile, or that may not be looked into, are left out; an error says that
// proc itself cannot be read. Where watched is not nil, those whose cgroups it
// does not accept (paths from the mount's root) are left out too: addresses
// alone do not tell jobs apart, since two network namespaces may have the same.
// Where other is not nil, it tells processes that need not be looked at.
func Take(proc fs.FS, watched func(cgroup string) bool, other func(pid int) bool) (*Snapshot, error) {
	pids, err := PIDs(proc)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{owners: map[[2]netip.AddrPort]int{}}
	for _, pid := range pids {
		if other != nil && other(pid) {
			s.Others = append(s.Others, pid)
			continue
		}
		p, ok, err := readProcess(proc, pid)
		if err != nil {
			return nil, fmt.Errorf("reading the process table: %w", err)
		}
		if ok && (watched == nil || p.Cgroup != "" && watched(p.Cgroup)) {
			s.Processes = append(s.Processes, p)
		} else {
			s.Others = append(s.Others, pid)
		}
	}
	slices.SortFunc(s.Processes, func(a, b Process) int { return a.PID - b.PID })
	tables := map[string][]socket{} // by network namespace
	for i := range s.Processes {
		p := &s.Processes[i]
		if len(tables[p.netns]) == 0 { // also when the one asked before has ended
			tables[p.netns] = readSockets(proc, p.PID)
		}
		held := inodes(proc, p.PID)
		s.own(i, tables[p.netns], held)
		p.locate(proc, tables[p.netns], held)
	}
	return s, nil
}

// PIDs lists the processes below proc.
func PIDs(proc fs.FS) ([]int, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, fmt.Errorf("reading the process table: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// IsNode reports whether the process's environment names a PS-lite role.
func IsNode(proc fs.FS, pid int) bool {
	_, ok, _ := environment(proc, pid)
	return ok
}

// environment returns that of a node. An error says that it was not to be
// found out whether it is one.
func environment(proc fs.FS, pid int) (text string, ok bool, err error) {
	b, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/environ")
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) {
		return "", false, err
	}
	return string(b), err == nil && strings.Contains(string(b), "DMLC_ROLE="), nil
}

// readProcess reports false for what is no node of a job.
func readProcess(proc fs.FS, pid int) (Process, bool, error) {
	dir := strconv.Itoa(pid)
	text, ok, err := environment(proc, pid)
	if err != nil || !ok {
		return Process{}, false, err
	}
	p := Process{PID: pid}
	env := map[string]string{}
	for v := range strings.SplitSeq(text, "\x00") {
		if name, value, ok := strings.Cut(v, "="); ok {
			env[name] = value
		}
	}
	p.Role, p.Van = env["DMLC_ROLE"], env["DMLC_PS_VAN_TYPE"]
	p.Local = env["DMLC_LOCAL"] != "" && env["DMLC_LOCAL"] != "0"
	if p.Scheduler, p.SchedulerName, ok = schedulerOf(env); !ok {
		return Process{}, false, nil
	}
	p.Servers, p.Workers = number(env["DMLC_NUM_SERVER"]), number(env["DMLC_NUM_WORKER"])
	if ip, err := netip.ParseAddr(env["DMLC_NODE_HOST"]); err == nil {
		p.Listens = append(p.Listens, netip.AddrPortFrom(ip.Unmap(), 0))
	}
	if args, err := fs.ReadFile(proc, dir+"/cmdline"); err == nil {
		p.Command = strings.TrimSpace(strings.ReplaceAll(string(args), "\x00", " "))
	}
	if groups, err := fs.ReadFile(proc, dir+"/cgroup"); err == nil {
		p.Cgroup = cgroupOf(string(groups))
		p.Pod, p.Container = Pod(p.Cgroup)
	}
	p.netns = dir
	if ns, err := fs.ReadLink(proc, dir+"/ns/net"); err == nil {
		p.netns = ns
	}
	return p, true, nil
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// cgroupOf returns the cgroup v2 path from /proc/PID/cgroup.
func cgroupOf(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// inodes returns the socket inodes that the process holds.
func inodes(proc fs.FS, pid int) map[uint64]bool {
	dir := strconv.Itoa(pid) + "/fd"
	entries, err := fs.ReadDir(proc, dir)
	if err != nil {
		return nil
	}
	held := map[uint64]bool{}
	for _, e := range entries {
		target, err := fs.ReadLink(proc, dir+"/"+e.Name())
		if err != nil {
			continue
		}
		digits, ok := strings.CutPrefix(target, "socket:[")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 64); err == nil {
			held[n] = true
		}
	}
	return held
}

// own gives process i its sockets of the table.
func (s *Snapshot) own(i int, table []socket, held map[uint64]bool) {
	p := &s.Processes[i]
	var ips []netip.Addr
	for _, a := range p.Listens { // DMLC_NODE_HOST
		ips = append(ips, a.Addr())
	}
	p.Listens = nil
	var ports []uint16
	for _, k := range table {
		if !held[k.inode] {
			continue
		}
		switch {
		case k.listening && k.local.Addr().IsUnspecified():
			ports = append(ports, k.local.Port())
		case k.listening:
			p.Listens = append(p.Listens, k.local)
		default:
			ips = append(ips, k.local.Addr())
			s.owners[[2]netip.AddrPort{k.local, k.peer}] = i
		}
	}
	for _, port := range ports {
		for _, ip := range ips {
			p.Listens = append(p.Listens, netip.AddrPortFrom(ip, port))
		}
	}
	slices.SortFunc(p.Listens, netip.AddrPort.Compare)
	p.Listens = slices.Compact(p.Listens)
}

// ErrNoCgroup says that a process is in no cgroup of version 2.
var ErrNoCgroup = errors.New("it is in no cgroup v2")

// CgroupOf returns the cgroup v2 path of a process, whatever it runs.
func CgroupOf(proc fs.FS, pid int) (string, error) {
	text, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/cgroup")
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	path := cgroupOf(string(text))
	if path == "" {
		return "", fmt.Errorf("process %d: %w", pid, ErrNoCgroup)
	}
	return path, nil
}
