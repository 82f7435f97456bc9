package listeners

import (
	"path/filepath"
	"strconv"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/policy"
)

// Discovered splits a snapshot into processes that can be served and those that cannot (left).
// To be served, a process must speak TCP and live in a cgroup below the root: redirecting the
// root cgroup would redirect the whole host.
//
// proc is the directory of the host's /proc and cgroupRoot the mount point of cgroup v2. called
// returns a process's job name and its owner's wishes; it is called for each process that is
// served.
func Discovered(s *discover.Snapshot, proc, cgroupRoot string, called func(*discover.Process) (string, policy.Policy)) (all []Process, left []discover.Process) {
	for i := range s.Processes {
		p := s.Processes[i]
		if p.Cgroup == "" || p.Cgroup == "/" || p.Local {
			left = append(left, p)
			continue
		}
		job := ""
		if p.Scheduler.IsValid() {
			job = p.Scheduler.String()
		}
		name, wishes := called(&p)
		all = append(all, Process{
			Called: name, Wishes: wishes,
			Job: job, Pending: job == "",
			Cgroup: filepath.Join(cgroupRoot, p.Cgroup),
			Netns:  filepath.Join(proc, strconv.Itoa(p.PID), "ns/net"),
		})
	}
	return all, left
}
