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

// GatherFacts collects the facts of this host, as this process may see them. What
// cannot be found out counts as absent; the error says only that nothing at
// all can be known.
func GatherFacts() (Facts, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Facts{}, fmt.Errorf("asking for the kernel's release: %w", err)
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

// Cgroup2Mount returns where cgroup v2 is mounted, empty where it is not. Unlike [GatherFacts]
// it asks the kernel for nothing else, which takes a while.
func Cgroup2Mount() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("reading the mounts (is /proc mounted?): %w", err)
	}
	return mountPoint(string(mounts), "cgroup2"), nil
}

// effective reads the line CapEff of /proc/self/status.
func effective(status string) uint64 {
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, _ := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return set
		}
	}
	return 0
}

// mountPoint returns where the first file system of that type is mounted.
func mountPoint(mounts, kind string) string {
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == kind {
			return f[1]
		}
	}
	return ""
}

// lockdown returns the mode in brackets: "none [integrity] confidentiality".
func lockdown() string {
	text, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "[")
	mode, _, _ := strings.Cut(rest, "]")
	return mode
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

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

func memlock() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max > 1<<62 {
		return -1
	}
	return int64(limit.Max)
}

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

// ReadFacts reads recorded facts: their JSON, or that of psidecar doctor,
// which holds them in the member facts.
func ReadFacts(path string) (Facts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Facts{}, fmt.Errorf("reading recorded facts: %w", err)
	}
	var report struct {
		Facts *Facts `json:"facts"`
	}
	var facts Facts
	if err := errors.Join(json.Unmarshal(text, &report), json.Unmarshal(text, &facts)); err != nil {
		return Facts{}, fmt.Errorf("recorded facts %s: %w", path, err)
	}
	if report.Facts != nil {
		facts = *report.Facts
	}
	if facts.Kernel == "" {
		return Facts{}, fmt.Errorf("recorded facts %s: no kernel release in it; write it with psidecar doctor --json", path)
	}
	return facts, nil
}
