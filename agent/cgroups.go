package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/agent/discover"
)

// cgroupPath returns the directory of a cgroup that a user named by its path, or relative to
// the mount of cgroup v2.
func (a *Agent) cgroupPath(name string) string {
	if strings.HasPrefix(name, a.opts.CgroupRoot) {
		return name
	}
	// Paths in /proc/PID/cgroup begin with a slash, too, and are relative to the mount. A
	// directory there wins over one of the same path elsewhere.
	below := filepath.Join(a.opts.CgroupRoot, name)
	if _, err := os.Stat(below); err == nil {
		return below
	}
	return name
}

// onlyWatched restricts discovery to processes in watched cgroups, from now on: if the user
// named cgroups, other processes do not belong to the jobs. It is impossible, and logged, for a
// cgroup outside the mount by which processes' paths are resolved.
func (a *Agent) onlyWatched() {
	for _, path := range a.attached {
		if !within(path, a.opts.CgroupRoot) {
			slog.Warn("cannot identify the processes of a cgroup: it is not below the cgroup v2 mount",
				"cgroup", path, "mount", a.opts.CgroupRoot)
			return
		}
	}
	a.procs.watched = func(cgroup string) bool { return a.watches(filepath.Join(a.opts.CgroupRoot, cgroup)) }
}

// attachPID watches the cgroup of a process, if that is not watched already.
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

// watches reports whether a cgroup, or one above it, is watched.
func (a *Agent) watches(path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.attached, func(other string) bool { return within(path, other) })
}

// within reports whether path is other or below it.
func within(path, other string) bool {
	return path == other || strings.HasPrefix(path, strings.TrimSuffix(other, "/")+"/")
}

// attach watches a cgroup. Programs run for all cgroups below, so those below it that are
// watched are detached first; otherwise their segments would be counted twice. Segments that
// pass between the two steps are not seen.
func (a *Agent) attach(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Collected first: the list changes while they are detached.
	var below []string
	for _, other := range a.attached {
		if within(other, path) {
			below = append(below, other)
		}
	}
	for _, other := range below {
		// A cgroup that was removed has taken its programs with it.
		if err := a.capture.Detach(other); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		a.attached = slices.DeleteFunc(a.attached, func(s string) bool { return s == other })
	}
	// If this fails, the cgroups below have been detached already. It is an error of New, or
	// one that is logged and tried again with the next scan.
	if err := a.capture.Attach(path); err != nil {
		return err
	}
	a.attached = append(a.attached, path)
	a.ready = nil
	slog.Info("watching", "cgroup", path)
	return nil
}
