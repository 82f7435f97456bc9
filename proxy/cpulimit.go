package proxy

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cpuLimits reads for how long the CPU limits of this process's cgroup, and of those above it, have
// throttled it. The zero value knows none.
type cpuLimits struct {
	files []string // cpu.stat of each cgroup that may have a limit
	last  []time.Duration
}

// open finds the cgroups: proc is this process's list of them, root the folder where hierarchies are
// mounted. What cannot be read has no limit.
func (l *cpuLimits) open(proc, root string) {
	*l = cpuLimits{}
	text, err := os.ReadFile(proc)
	if err != nil {
		return
	}
	for _, file := range cpuStats(string(text), root) {
		if d, ok := readThrottled(file); ok {
			l.files, l.last = append(l.files, file), append(l.last, d)
		}
	}
}

// read returns for how long the process was throttled since the last call, by the limit that throttled
// most. Times of several processors add up.
func (l *cpuLimits) read() (most time.Duration) {
	for i, file := range l.files {
		if d, ok := readThrottled(file); ok {
			most, l.last[i] = max(most, d-l.last[i]), d
		}
	}
	return most
}

// cpuStats returns where the cpu.stat of the cgroups of a process may be, given the text of
// /proc/self/cgroup: of its own and those above it, in hierarchies of both versions. In a container
// the root of the hierarchy is the container's cgroup, whatever the text says.
func cpuStats(text, root string) (files []string) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		var mounts []string
		switch controllers := strings.Split(fields[1], ","); {
		case fields[1] == "": // version 2, alone or beside version 1
			mounts = []string{"", "unified"}
		case slices.Contains(controllers, "cpu"):
			mounts = []string{fields[1], "cpu"}
		}
		for _, mount := range mounts {
			for dir := filepath.Join("/", fields[2]); ; dir = filepath.Dir(dir) {
				if file := filepath.Join(root, mount, dir, "cpu.stat"); !slices.Contains(files, file) {
					files = append(files, file)
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return files
}

// readThrottled reads how long the processes of a cgroup were throttled. ok is false where it cannot
// have a limit, as the root of version 2.
func readThrottled(file string) (d time.Duration, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case name == "throttled_usec": // version 2
			return time.Duration(n) * time.Microsecond, true
		case name == "throttled_time": // version 1
			return time.Duration(n), true
		}
	}
	return 0, false
}
