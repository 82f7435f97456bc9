package bpf

import (
	"errors"
	"fmt"
)

// Facts are the properties of a host that psidecar depends on. Their JSON is a stable format,
// in which they are recorded.
type Facts struct {
	Kernel       string `json:"kernel"`       // release, as uname -r prints it
	Machine      string `json:"machine"`      // amd64, arm64, ...
	Capabilities uint64 `json:"capabilities"` // effective, as in /proc/self/status
	// Cgroup2 is the mount point of cgroup v2, Tracefs that of tracefs, and BPFFS that of the
	// BPF file system; empty where it is not mounted.
	Cgroup2 string `json:"cgroup2"`
	Tracefs string `json:"tracefs"`
	BPFFS   string `json:"bpffs"`
	// BTF says that the kernel describes its types in /sys/kernel/btf.
	BTF bool `json:"btf"`
	// Lockdown is none, integrity or confidentiality; empty if the kernel has no lockdown.
	Lockdown string `json:"lockdown"`
	// JIT is net.core.bpf_jit_enable; -1 if it cannot be read.
	JIT int `json:"jit"`
	// Memlock is the hard limit on locked memory in bytes; -1 for none.
	Memlock int64 `json:"memlock"`
	// UprobePMU says that uprobes can be opened by perf_event_open.
	UprobePMU bool `json:"uprobe_pmu"`
	// RDMADevices are the names in /sys/class/infiniband.
	RDMADevices []string `json:"rdma_devices"`
	// Features has the kernel's answer for each kernel feature by name: empty if the kernel has
	// it, else the error.
	Features map[string]string `json:"features"`
}

// ErrMissing is wrapped by every error about something that a host lacks.
var ErrMissing = errors.New("missing")

// A MissingError names something that a host lacks. It wraps ErrMissing.
type MissingError struct {
	What   string // such as "BPF ring buffers"
	Since  string // the Linux release that introduced it; empty if no release matters
	Detail string // what was found instead
}

func (e *MissingError) Error() string {
	text := e.What + " is missing"
	if e.Since != "" {
		text += fmt.Sprintf(" (there since Linux %s)", e.Since)
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Unwrap returns ErrMissing.
func (e *MissingError) Unwrap() error { return ErrMissing }

// A Finding is the result of one check.
type Finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed says that the agent cannot watch without it.
	Needed bool   `json:"needed"`
	Found  string `json:"found"`
	// Missing names what is missing and the kernel that introduced it, Do says how to get it,
	// and Without what works regardless. All three are empty if OK.
	Missing string `json:"missing,omitempty"`
	Do      string `json:"do,omitempty"`
	Without string `json:"without,omitempty"`
	err     error
}

// Err returns nil if the check passed, else a [MissingError].
func (f *Finding) Err() error { return f.err }

// CheckWatching returns nil if a host has everything that the agent needs to watch, else all
// that is missing, joined.
func CheckWatching(f Facts) error {
	var missing []error
	for _, finding := range CheckFacts(f) {
		if finding.Needed && !finding.OK {
			missing = append(missing, finding.Err())
		}
	}
	return errors.Join(missing...)
}
