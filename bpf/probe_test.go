package bpf

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// recorded returns a real host's facts, changed as a test wants them.
func recorded(t *testing.T, change func(*Facts)) Facts {
	t.Helper()
	f := require.Value(ReadFacts("testdata/linux-6.18.json"))(t)
	f.Features = maps.Clone(f.Features)
	change(&f)
	return f
}

func find(t *testing.T, findings []Finding, name string) Finding {
	t.Helper()
	for _, f := range findings {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no finding named %q", name)
	return Finding{}
}

func without(capability int) func(*Facts) {
	return func(f *Facts) { f.Capabilities &^= 1<<capability | 1<<unix.CAP_SYS_ADMIN }
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	const tooOld = "not supported (requires >= v5.8)"
	for _, tc := range []struct {
		name     string
		change   func(*Facts)
		finding  string
		watching bool   // still possible
		missing  string // in Missing
		do       string // in Do
		without  string // in Without
	}{
		{"no BTF", func(f *Facts) { f.BTF = false }, "BTF", false, "since Linux 5.4", "CONFIG_DEBUG_INFO_BTF", "decode"},
		{"no cgroup v2", func(f *Facts) { f.Cgroup2 = "" }, "cgroup v2", false, "cgroup v2 hierarchy", "mount -t cgroup2", "decode"},
		{"no CAP_BPF", without(unix.CAP_BPF), "CAP_BPF", false, "since Linux 5.8", "AmbientCapabilities=CAP_BPF", "decode"},
		{"no CAP_NET_ADMIN", without(unix.CAP_NET_ADMIN), "CAP_NET_ADMIN", false, "CAP_NET_ADMIN", "securityContext", "decode"},
		{"no CAP_PERFMON", without(unix.CAP_PERFMON), "CAP_PERFMON", false, "verifier", "root", "decode"},
		{"no CAP_SYS_PTRACE", without(unix.CAP_SYS_PTRACE), "CAP_SYS_PTRACE", true, "environment", "root", "watching"},
		{"lockdown", func(f *Facts) { f.Lockdown = "confidentiality" }, "lockdown", true, "confidentiality", "integrity", "everything"},
		{"old kernel", func(f *Facts) { f.Kernel = "5.4.0-200-generic"; f.Features["ringbuf"] = tooOld }, "kernel", false, "5.15", "upgrade", "decode"},
		{"no ring buffer", func(f *Facts) { f.Kernel = "5.4.0-200-generic"; f.Features["ringbuf"] = tooOld }, "ringbuf", false, "since Linux 5.8", "5.8 or newer", "decode"},
		{"built without", func(f *Facts) { f.Features["cgroup_skb"] = "not supported" }, "cgroup_skb", false, "cgroup_skb programs", "CONFIG_CGROUP_BPF", "decode"},
		{"not allowed to ask", func(f *Facts) { f.Features["ringbuf"] = "operation not permitted" }, "ringbuf", false, "not permitted", "as root", "decode"},
		{"little locked memory", func(f *Facts) { f.Kernel = "5.10.0"; f.Memlock = 65536; f.Capabilities = 0 }, "locked memory", false, "5.11", "ulimit", "decode"},
		{"big endian", func(f *Facts) { f.Machine = "s390x" }, "machine", false, "s390x", "such hosts", "decode"},
		{"no JIT", func(f *Facts) { f.JIT = 0 }, "BPF JIT", true, "compilation", "sysctl", "everything"},
		{"RDMA", func(f *Facts) { f.RDMADevices = []string{"mlx5_0"} }, "RDMA", true, "mlx5_0", "DMLC_PS_VAN_TYPE=zmq", "sockets"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := recorded(t, tc.change)
			got := find(t, CheckFacts(facts), tc.finding)
			if got.OK || !strings.Contains(got.Missing, tc.missing) || !strings.Contains(got.Do, tc.do) || !strings.Contains(got.Without, tc.without) {
				t.Errorf("finding %+v", got)
			}
			if !errors.Is(got.Err(), ErrMissing) {
				t.Errorf("error %v does not wrap ErrMissing", got.Err())
			}
			err := CheckWatching(facts)
			if (err == nil) != tc.watching {
				t.Errorf("Watching: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), got.Missing) {
				t.Errorf("Watching does not name it: %v", err)
			}
		})
	}
}

func TestAllIsWell(t *testing.T) {
	facts := recorded(t, func(*Facts) {})
	if err := CheckWatching(facts); err != nil {
		t.Error(err)
	}
	for _, f := range CheckFacts(facts) {
		if f.Found == "" || f.OK && (f.Missing != "" || f.Do != "") {
			t.Errorf("finding %+v", f)
		}
	}
	if CheckRDMA(facts) == nil {
		t.Error("RDMA cannot be watched anywhere, and must say so")
	}
}

func TestCapabilityOfTheAdministratorIsEnough(t *testing.T) {
	facts := recorded(t, func(f *Facts) { f.Capabilities &^= 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON })
	if err := CheckWatching(facts); err != nil {
		t.Error(err)
	}
}

func TestGather(t *testing.T) {
	require.BPF(t)
	facts := require.Value(GatherFacts())(t)
	if facts.Kernel == "" || facts.Capabilities == 0 || len(facts.Features) != len(kernelFeatures()) {
		t.Errorf("facts %+v", facts)
	}
	if why := facts.Features["cgroup_skb"]; why != "" {
		t.Errorf("a program for cgroup_skb could be loaded, but its check says %q", why)
	}
}

func TestOlder(t *testing.T) {
	for _, tc := range []struct {
		release, than string
		want          bool
	}{
		{"5.15.0-91-generic", "5.15", false}, {"5.4.0", "5.15", true}, {"6.1", "5.15", false},
		{"4.19.0-26-amd64", "5.8", true}, {"6.18.44-fc", "6.18", false}, {"5.15-rc1", "5.15", false},
	} {
		if got := older(tc.release, tc.than); got != tc.want {
			t.Errorf("older(%s, %s) = %v", tc.release, tc.than, got)
		}
	}
}

func TestBadRecordedFacts(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "kernel: 6", "nothing in it": "{}"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "facts.json")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			if _, err := ReadFacts(path); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := ReadFacts("/nonexistent"); err == nil {
		t.Error("no error")
	}
}
