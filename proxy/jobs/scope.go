package jobs

import "fmt"

// A Scope is a set of processes on this host whose word counts for one another:
// those in a cgroup whose connects the agent has redirected, or below it, in one
// network namespace. What processes of one scope say changes nothing for those
// of another. The zero Scope is that of processes of which the agent does not
// tell.
type Scope struct{ Cgroup, Netns uint64 }

// Known reports whether the agent has told of it.
func (s Scope) Known() bool { return s != Scope{} }

func (s Scope) String() string {
	if !s.Known() {
		return "unknown"
	}
	return fmt.Sprintf("cgroup %d netns %d", s.Cgroup, s.Netns)
}
