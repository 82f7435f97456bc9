// Package discover finds the PS-lite processes of a host: processes with DMLC_* in
// their environment, their cgroup and pod, their listening addresses and their
// peers.
//
// In comes a /proc file system (the host's, or a recorded tree); out comes a
// [Snapshot] of the whole. The agent takes one when processes come or go, and
// when it meets a connection whose owner it does not know. A [Finder] remembers
// what it has read of a process, so that the next snapshot costs little.
//
// Any process of the host can give itself such an environment, thousands of them
// can: the data read of each is bounded, and so is their number.
//
// # Pods
//
// [Pods] knows a Kubernetes node and its pods: their names, by the UID in the cgroups
// of their processes, their owners, their annotations, whether a user wants them
// watched, and the speed of the node's link.
//
// It follows the API server's view of one node, its pods, their owners, and namespaces
// where labels select. [Pods.Lookup], [Pods.Said] and [Pods.Link] answer; a pod with a
// bad annotation gets an event. While no API server answers, the last known state
// holds.
//
// # Processes
//
// [ReadProc] and its siblings read /proc of other processes without trusting them. A
// process chooses its own environment, arguments, descriptors and root directory; a
// name may lead to a FIFO, a device, a file without end, or a file system whose server
// never answers. So both size and time of each read are bounded. The agent, which
// reads, usually runs as root.
//
// [ProcFS] reads the real /proc. The functions also take any other [fs.FS], such as a
// recorded tree, with the same bounds on size.
package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/internal/policy"
)

// A Process is a process that runs a PS-lite node. Its strings come from the process itself,
// which may not be trusted; their length is bounded.
type Process struct {
	PID       int
	Command   string         // command line, cut off after maxCommand bytes
	Role      string         // DMLC_ROLE
	Scheduler netip.AddrPort // the address is invalid until the name is resolved: see SchedulerName
	// SchedulerName is DMLC_PS_ROOT_URI as the process has it: an address or a host name.
	SchedulerName string
	Servers       int    // DMLC_NUM_SERVER; 0 where it is not set
	Workers       int    // DMLC_NUM_WORKER; 0 where it is not set
	Van           string // DMLC_PS_VAN_TYPE
	Local         bool   // DMLC_LOCAL: it uses unix sockets, so TCP shows nothing
	// Settings are the PSIDECAR_* variables of its environment (PSIDECAR_JOB and so on).
	Settings policy.Settings
	// UID is its real user, as numbered in the reader's user namespace. Owned is false if the
	// user could not be read.
	UID       uint32
	Owned     bool
	Cgroup    string // cgroup v2 path, from the mount's root
	Pod       string // Kubernetes pod UID
	Container string // container id
	// Listens are the addresses at which it may be reached, sorted: those of its listening
	// sockets, and for sockets that listen on every address, each local address known from its
	// connections and DMLC_NODE_HOST. At most maxListens.
	Listens []netip.AddrPort

	// netns identifies its network namespace: the target of /proc/PID/ns/net, or PID if
	// unreadable.
	netns string
}

// A Snapshot is the set of PS-lite processes of a host at one moment. It is not changed after
// it was taken and may be shared by goroutines.
type Snapshot struct {
	Processes []Process
	// Others are the processes that are not in the snapshot: no nodes, not watched, or left
	// out.
	Others []int
	// LeftOut is the number of nodes beyond [MaxNodes].
	LeftOut int
	owners  map[[2]netip.AddrPort]int // index in Processes by local, peer address
}

// Owner returns the process that holds the socket with these two addresses. Of processes that
// share one, such as a parent and its child, it is the one with the highest PID. The Process
// belongs to the snapshot.
func (s *Snapshot) Owner(local, peer netip.AddrPort) (*Process, bool) {
	i, ok := s.owners[[2]netip.AddrPort{local, peer}]
	if !ok {
		return nil, false
	}
	return &s.Processes[i], true
}

// maxPIDs exceeds the kernel's own limit (PID_MAX_LIMIT, 2^22).
const maxPIDs = 1 << 23

// PIDs lists the processes below proc in no particular order.
func PIDs(proc fs.FS) ([]int, error) {
	names, err := ListNames(proc, ".", maxPIDs)
	if err != nil {
		return nil, fmt.Errorf("reading the process table: %w", err)
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// cgroupOf returns the cgroup v2 path from the text of /proc/PID/cgroup, in which lines of v1
// hierarchies may come first; empty if there is none.
func cgroupOf(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// ErrNoCgroup says that a process is in no cgroup of version 2.
var ErrNoCgroup = errors.New("it is in no cgroup v2")

// CgroupOf returns the cgroup v2 path of any process. The error is [ErrNoCgroup] on a host with
// v1 alone.
func CgroupOf(proc fs.FS, pid int) (string, error) {
	text, err := ReadProc(proc, strconv.Itoa(pid)+"/cgroup", maxGroups)
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	path := cgroupOf(string(text))
	if path == "" {
		return "", fmt.Errorf("process %d: %w", pid, ErrNoCgroup)
	}
	return path, nil
}

// sorted returns pids in ascending order.
func sorted(pids []int) []int {
	slices.Sort(pids)
	return pids
}
