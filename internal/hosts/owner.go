package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// namePrefix begins every name that this package assigns.
const namePrefix = "psd-"

// nets numbers the Nets of this process, so that their names differ.
var nets atomic.Uint64

// An owner is the process that a namespace or cgroup belongs to. The start time distinguishes
// it from a later process with the same PID, the boot from one before the machine was
// restarted.
type owner struct {
	boot  string // first 8 digits of the boot id
	pid   int
	start uint64 // in clock ticks since boot
}

// ownPrefix returns a name prefix for a new Net of this process:
// psd-BOOT-PID-START-NUMBER-.
func ownPrefix() (string, error) {
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%s-%d-%d-%d-", namePrefix, boot, os.Getpid(), start, nets.Add(1)), nil
}

// parseOwner returns the owner in a name that this package has assigned.
func parseOwner(name string) (owner, bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return owner{}, false
	}
	part := strings.SplitN(rest, "-", 5)
	if len(part) != 5 || len(part[0]) != 8 {
		return owner{}, false
	}
	pid, err := strconv.Atoi(part[1])
	if err != nil {
		return owner{}, false
	}
	start, err := strconv.ParseUint(part[2], 10, 64)
	if err != nil {
		return owner{}, false
	}
	return owner{boot: part[0], pid: pid, start: start}, true
}

// alive reports whether the owner still runs.
func (o owner) alive() (bool, error) {
	boot, err := bootID()
	if err != nil || boot != o.boot {
		return false, err
	}
	start, err := startTime(o.pid)
	// No process has that PID now.
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return start == o.start, err
}

// bootID returns the beginning of this boot's id.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	if len(id) < 8 {
		return "", fmt.Errorf("the boot id %q is too short", id)
	}
	return string(id[:8]), nil
}

// startTime returns field 22 of /proc/PID/stat. The command's name before it may contain blanks
// and parentheses.
func startTime(pid int) (uint64, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	stat, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const index = 22 - 3 // the first field after the name is number 3
	if len(fields) <= index {
		return 0, fmt.Errorf("%s has %d fields after the name", path, len(fields))
	}
	return strconv.ParseUint(fields[index], 10, 64)
}

// Reap kills and removes what is left of hosts whose owner is gone: cgroups with their
// processes, and network namespaces. New calls it.
func Reap() error {
	mount, err := cgroupMount()
	if err != nil {
		return err
	}
	var errs []error
	stale(mount, func(name string) {
		errs = append(errs, removeCgroup(filepath.Join(mount, name)))
	}, &errs)
	stale(namespaces, func(name string) {
		errs = append(errs, deleteNamespace(name))
	}, &errs)
	return errors.Join(errs...)
}

// stale calls remove for every entry of a folder whose owner is gone. Entries with other names
// are left alone.
func stale(dir string, remove func(name string), errs *[]error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			*errs = append(*errs, err)
		}
		return
	}
	for _, e := range entries {
		o, ok := parseOwner(e.Name())
		if !ok {
			continue
		}
		switch alive, err := o.alive(); {
		case err != nil:
			*errs = append(*errs, fmt.Errorf("the owner of %s: %w", e.Name(), err))
		case !alive:
			remove(e.Name())
		}
	}
}
