package listeners

import (
	"path/filepath"
	"strconv"

	"github.com/psidecar/psidecar/agent/discover"
)

// Discovered are the processes of a snapshot that can be served: those of jobs
// that speak over TCP, in a cgroup below the root, since redirecting the root
// would redirect the whole host. proc is where the host's processes are
// listed, cgroupRoot where cgroup v2 is mounted.
func Discovered(s *discover.Snapshot, proc, cgroupRoot string) (all []Process, left []discover.Process) {
	for _, p := range s.Processes {
		if p.Cgroup == "" || p.Cgroup == "/" || p.Local {
			left = append(left, p)
			continue
		}
		job := ""
		if p.Scheduler.IsValid() {
			job = p.Scheduler.String()
		}
		all = append(all, Process{
			Job: job, Pending: job == "",
			Cgroup: filepath.Join(cgroupRoot, p.Cgroup),
			Netns:  filepath.Join(proc, strconv.Itoa(p.PID), "ns/net"),
		})
	}
	return all, left
}
