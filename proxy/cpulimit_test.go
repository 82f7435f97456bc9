package proxy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/psidecar/psidecar/test/require"
)

func TestCPUStats(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"version 2":           {"0::/kubepods/pod1/c1\n", []string{"/r/kubepods/pod1/c1/cpu.stat", "/r/kubepods/pod1/cpu.stat", "/r/kubepods/cpu.stat", "/r/cpu.stat", "/r/unified/kubepods/pod1/c1/cpu.stat", "/r/unified/kubepods/pod1/cpu.stat", "/r/unified/kubepods/cpu.stat", "/r/unified/cpu.stat"}},
		"own namespace":       {"0::/\n", []string{"/r/cpu.stat", "/r/unified/cpu.stat"}},
		"version 1":           {"4:memory:/a\n3:cpu,cpuacct:/a\n", []string{"/r/cpu,cpuacct/a/cpu.stat", "/r/cpu,cpuacct/cpu.stat", "/r/cpu/a/cpu.stat", "/r/cpu/cpu.stat"}},
		"path with a colon":   {"1:cpu:/a:b\n", []string{"/r/cpu/a:b/cpu.stat", "/r/cpu/cpu.stat"}},
		"above the namespace": {"0::/../x\n", []string{"/r/x/cpu.stat", "/r/cpu.stat", "/r/unified/x/cpu.stat", "/r/unified/cpu.stat"}},
		"rubbish":             {"\n::\ncpu\n1:cpuset:/a\n", []string{"/r/cpu.stat", "/r/unified/cpu.stat"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, cpuStats(c.text, "/r")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The limit that throttles most counts, by what it has throttled since the last reading.
func TestCPULimits(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(root, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("proc", "0::/pod/container\n")
	write("cpu.stat", "usage_usec 5\n")
	write("pod/cpu.stat", "usage_usec 5\nnr_throttled 2\nthrottled_usec 1000\n")
	write("pod/container/cpu.stat", "usage_usec 5\nthrottled_usec 7000\n")
	var l cpuLimits
	l.open(filepath.Join(root, "proc"), root)
	if d := l.read(); d != 0 || len(l.files) != 2 {
		t.Errorf("at first it is throttled for %v, by %v", d, l.files)
	}
	write("pod/cpu.stat", "throttled_usec 4000\n")
	write("pod/container/cpu.stat", "throttled_usec 8000\n")
	if d := l.read(); d != 3*time.Millisecond {
		t.Errorf("it is throttled for %v", d)
	}
	write("pod/cpu.stat", "throttled_usec rubbish\n")
	if d := l.read(); d != 0 {
		t.Errorf("without news it is throttled for %v", d)
	}
	l.open(filepath.Join(root, "nothing"), root)
	if d := l.read(); d != 0 || len(l.files) != 0 {
		t.Errorf("with nothing to read it is throttled for %v", d)
	}
}

// A process that computes in a cgroup with a fifth of a processor knows that it is throttled.
func TestThrottledProcess(t *testing.T) {
	if os.Getenv("PSIDECAR_TEST_THROTTLED") != "" {
		var m usageMeter
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if u, err := m.read(time.Now()); err != nil {
				t.Fatal(err)
			} else if u.Throttled > 0.2 {
				return
			}
			for n := uint64(0); n < 100_000_000; n++ {
				m.idle ^= n // computes
			}
		}
		t.Fatal("it is not throttled")
	}
	cmd := exec.Command("/bin/sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, limitedGroup(t), os.Args[0], "-test.run=^TestThrottledProcess$")
	cmd.Env = append(os.Environ(), "PSIDECAR_TEST_THROTTLED=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// limitedGroup returns a new cgroup, of the version that has the CPU controller here, whose processes
// together get a fifth of a processor.
func limitedGroup(t *testing.T) string {
	require.Root(t)
	var errs []error
	for _, c := range []struct{ root, controllers, file, text string }{
		{"/sys/fs/cgroup/cpu", "", "cpu.cfs_quota_us", "20000"},
		{"/sys/fs/cgroup", "cgroup.subtree_control", "cpu.max", "20000 100000"},
	} {
		if c.controllers != "" {
			errs = append(errs, os.WriteFile(filepath.Join(c.root, c.controllers), []byte("+cpu"), 0o644))
		}
		group := filepath.Join(c.root, "psd-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(group, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		t.Cleanup(func() {
			// The kernel may take a moment to let go of a process that has ended.
			require.Await(t, "the group is removed", func() error { return os.Remove(group) })
		})
		err := os.WriteFile(filepath.Join(group, c.file), []byte(c.text), 0o644)
		if err == nil {
			return group
		}
		errs = append(errs, err)
	}
	require.Missing(t, "needs cgroups with the CPU controller: %v", errors.Join(errs...))
	return ""
}
