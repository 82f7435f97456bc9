package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroupMount returns the mount point of cgroup v2: /sys/fs/cgroup on most machines,
// /sys/fs/cgroup/unified where v1 is mounted too.
func cgroupMount() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("looking for cgroup v2: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("no cgroup v2 in /proc/self/mounts: mount it with mount -t cgroup2 none /sys/fs/cgroup")
}

// makeCgroup creates a cgroup inside another, unless it exists, and returns its folder.
func makeCgroup(parent, name string) (string, error) {
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("making cgroup %s: %w", name, err)
	}
	return dir, nil
}

// removeCgroup kills every process in a cgroup and in those below it, waits until they are
// gone, and removes the cgroups. It needs cgroup.kill (Linux 5.14), which no process can escape
// by forking.
func removeCgroup(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Stat(dir); gone != nil {
			return nil
		}
		return fmt.Errorf("killing the processes of %s: no cgroup.kill, which Linux has since 5.14", dir)
	}
	if err != nil {
		return fmt.Errorf("killing the processes of %s: %w", dir, err)
	}
	// Killed processes leave the cgroup when they are dead, not when they are
	// waited for: a matter of milliseconds, unless one hangs in the kernel.
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := removeEmpty(dir)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// removeEmpty removes a cgroup and those below it, deepest first.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeEmpty(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// CgroupCPU returns the processor time that the processes of a cgroup, and of those below it,
// have taken since it was created.
func CgroupCPU(dir string) (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return 0, fmt.Errorf("reading the CPU time of a cgroup: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "usage_usec "); ok {
			micros, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("reading the CPU time of cgroup %s: %w", dir, err)
			}
			return time.Duration(micros) * time.Microsecond, nil
		}
	}
	return 0, fmt.Errorf("cpu.stat of cgroup %s has no usage_usec: %q", dir, text)
}
