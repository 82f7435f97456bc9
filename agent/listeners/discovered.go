package listeners

import (
	"path/filepath"
	"strconv"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/policy"
)

// Discovered are the processes of a snapshot that can be served: those of jobs
// that speak over TCP, in a cgroup below the root, since redirecting the root
// would redirect the whole host. proc is where the host's processes are
// listed, cgroupRoot where cgroup v2 is mounted; called says what their jobs are
// called and what their owners ask for.
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
