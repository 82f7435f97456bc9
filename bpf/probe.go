package bpf

import (
	"errors"
	"fmt"
)

// Facts are the properties of a host that psidecar depends on. A recorded one is
// its JSON.
type Facts struct {
	Kernel       string `json:"kernel"`       // release, as uname -r prints it
	Machine      string `json:"machine"`      // amd64, arm64, ...
	Capabilities uint64 `json:"capabilities"` // effective, as in /proc/self/status
	// Cgroup2Mount is where a cgroup v2 hierarchy is mounted, Tracefs where tracefs
	// is, BPFFS where the BPF file system is; empty where none is.
	Cgroup2 string `json:"cgroup2"`
	Tracefs string `json:"tracefs"`
	BPFFS   string `json:"bpffs"`
	// BTF tells whether the kernel describes its types in /sys/kernel/btf.
	BTF bool `json:"btf"`
	// Lockdown is none, integrity or confidentiality; empty where the kernel
	// has no lockdown.
	Lockdown string `json:"lockdown"`
	// JIT is net.core.bpf_jit_enable; -1 where it cannot be read.
	JIT int `json:"jit"`
	// Memlock is the hard limit on locked memory in bytes; -1 for none.
	Memlock int64 `json:"memlock"`
	// UprobePMU: uprobes can be opened by perf_event_open.
	UprobePMU bool `json:"uprobe_pmu"`
	// RDMADevices are the names in /sys/class/infiniband.
	RDMADevices []string `json:"rdma_devices"`
	// Features holds the kernel's answer for each name in the list of kernel
	// features: empty where the feature is there, else why not.
	Features map[string]string `json:"features"`
}

// ErrMissing is what every error about something missing wraps.
var ErrMissing = errors.New("missing")

// MissingError names a thing that a host lacks.
type MissingError struct {
	What   string // "ring buffers for BPF"
	Since  string // the Linux release that brought it; empty where it is no matter of release
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

// Unwrap makes errors.Is(err, ErrMissing) hold.
func (e *MissingError) Unwrap() error { return ErrMissing }

// Finding is the result of one check.
type Finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed: the agent cannot watch without it.
	Needed bool   `json:"needed"`
	Found  string `json:"found"`
	// Missing names the missing feature and the kernel that introduced it, Do the
	// remedy, Without the functions that work regardless. All three are empty where
	// OK.
	Missing string `json:"missing,omitempty"`
	Do      string `json:"do,omitempty"`
	Without string `json:"without,omitempty"`
	err     error
}

// Err returns nil, or an error that wraps [ErrMissing].
func (f *Finding) Err() error { return f.err }

// CheckWatching returns nil where everything is there that the agent needs to
// watch, else all that is missing, joined.
func CheckWatching(f Facts) error {
	var missing []error
	for _, finding := range CheckFacts(f) {
		if finding.Needed && !finding.OK {
			missing = append(missing, finding.Err())
		}
	}
	return errors.Join(missing...)
}
