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

// A Process is one that runs a PS-lite node.
type Process struct {
	PID       int
	Command   string         // its arguments, the beginning where they are many
	Role      string         // DMLC_ROLE
	Scheduler netip.AddrPort // its address is not valid until it is found: see SchedulerName
	// SchedulerName is DMLC_PS_ROOT_URI as the process has it.
	SchedulerName string
	Servers       int    // DMLC_NUM_SERVER; 0 where it is not set
	Workers       int    // DMLC_NUM_WORKER
	Van           string // DMLC_PS_VAN_TYPE
	Local         bool   // DMLC_LOCAL: unix sockets, nothing to be seen on TCP
	// Settings are what its environment asks of psidecar (PSIDECAR_JOB and so on).
	Settings policy.Settings
	// UID is the user that it runs as, in the namespace of the reader; Owned: it is
	// known.
	UID       uint32
	Owned     bool
	Cgroup    string // cgroup v2 path, from the mount's root
	Pod       string // Kubernetes pod UID
	Container string // container id
	// Listens are the addresses at which it may be reached: those of its
	// sockets, with each port that it listens on.
	Listens []netip.AddrPort

	netns string
}

// A Snapshot is the PS-lite processes of a host at one moment.
type Snapshot struct {
	Processes []Process
	// Others are processes that are no nodes, as far as seen or reported.
	Others []int
	// LeftOut are nodes beyond [MaxNodes].
	LeftOut int
	owners  map[[2]netip.AddrPort]int // index in Processes by local, peer address
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

// Take takes one snapshot of the processes below proc; see [Finder.Take].
func Take(proc fs.FS, watched func(cgroup string) bool, other func(pid int) bool) (*Snapshot, error) {
	return NewFinder(proc).Take(Look{Watched: watched, Other: other})
}

// maxPIDs is more processes than Linux runs.
const maxPIDs = 1 << 23

// PIDs lists the processes below proc, unordered.
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

// cgroupOf returns the cgroup v2 path from /proc/PID/cgroup.
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

// CgroupOf returns the cgroup v2 path of a process, whatever it runs.
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
