package bpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GatherFacts collects the facts of this host as far as this process may see them. What cannot
// be determined counts as absent. An error means that nothing can be known at all. It loads
// some twenty small programs and maps as probes and closes them again.
func GatherFacts() (Facts, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Facts{}, fmt.Errorf("reading the kernel release: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return Facts{}, fmt.Errorf("reading the mounts (is /proc mounted?): %w", err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Facts{}, fmt.Errorf("reading the capabilities: %w", err)
	}
	return Facts{
		Kernel:       unix.ByteSliceToString(name.Release[:]),
		Machine:      runtime.GOARCH,
		Capabilities: effective(string(status)),
		Cgroup2:      mountPoint(string(mounts), "cgroup2"),
		Tracefs:      mountPoint(string(mounts), "tracefs"),
		BPFFS:        mountPoint(string(mounts), "bpf"),
		BTF:          exists("/sys/kernel/btf/vmlinux"),
		Lockdown:     lockdown(),
		JIT:          number("/proc/sys/net/core/bpf_jit_enable"),
		Memlock:      memlock(),
		UprobePMU:    exists("/sys/bus/event_source/devices/uprobe/type"),
		RDMADevices:  list("/sys/class/infiniband"),
		Features:     askKernel(),
	}, nil
}

// Cgroup2Mount returns the mount point of cgroup v2, empty if it is not mounted. Unlike
// [GatherFacts] it probes nothing, so it is fast.
func Cgroup2Mount() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("reading the mounts (is /proc mounted?): %w", err)
	}
	return mountPoint(string(mounts), "cgroup2"), nil
}

// effective returns the effective capabilities from the text of /proc/self/status, one bit
// each.
func effective(status string) uint64 {
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, _ := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return set
		}
	}
	return 0
}

// mountPoint returns the mount point of the first file system of a type in the text of
// /proc/self/mounts.
func mountPoint(mounts, kind string) string {
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == kind {
			return f[1]
		}
	}
	return ""
}

// lockdown returns the lockdown mode, which the kernel marks by brackets: none [integrity]
// confidentiality.
func lockdown() string {
	text, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "[")
	mode, _, _ := strings.Cut(rest, "]")
	return mode
}

// exists reports whether there is a file that this process can see.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// number reads a file that holds one number. It is -1 if the file cannot be read, so that a
// setting that cannot be seen is not taken for one that is off.
func number(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return n
}

// memlock returns the hard limit on locked memory in bytes, -1 if there is none. The hard limit
// counts, since Open raises the soft one.
func memlock() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max > 1<<62 {
		return -1
	}
	return int64(limit.Max)
}

// list returns the names in a folder, nil if it cannot be read.
func list(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// ReadFacts reads recorded facts from a file: their JSON, or the output of psidecar doctor
// --json, which has them in its member facts.
func ReadFacts(path string) (Facts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Facts{}, fmt.Errorf("reading recorded facts: %w", err)
	}
	var report struct {
		Facts *Facts `json:"facts"`
	}
	var facts Facts
	// Both are tried, since either text is valid JSON for the other, with nothing in it.
	if err := errors.Join(json.Unmarshal(text, &report), json.Unmarshal(text, &facts)); err != nil {
		return Facts{}, fmt.Errorf("recorded facts %s: not what psidecar doctor --json writes", path)
	}
	if report.Facts != nil {
		facts = *report.Facts
	}
	if facts.Kernel == "" {
		return Facts{}, fmt.Errorf("recorded facts %s: no kernel release in it; write it with psidecar doctor --json", path)
	}
	return facts, nil
}
