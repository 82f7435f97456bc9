package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/listeners"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/test/require"
)

// bpfFolder returns a folder in a BPF file system of the test's own.
func bpfFolder(t *testing.T) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("bpf", at, "bpf", 0, ""); err != nil {
		t.Fatalf("mounting a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(at, "psidecar")
}

func intercept(t *testing.T, dir string) *Interception {
	t.Helper()
	i := require.Value(Intercept(InterceptOptions{Dir: dir, Exclude: []uint16{22}}))(t)
	return i
}

func gone(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// A daemon that ends leaves nothing of its interception, nor does one that was given
// up before it ran, or whose agent cannot be opened.
func TestNothingIsLeft(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	group := require.Value(os.MkdirTemp(require.CgroupV2(t), "psd-daemon-"))(t)
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	options := agent.Options{
		Host: "h", Proc: t.TempDir(), CgroupRoot: filepath.Dir(group), Cgroups: []string{group}, // there are no processes: jobs of this machine are left alone
		Capture: bpf.Options{RingBytes: 1 << 20}, Sampling: agent.Sampling{OneIn: 1}, Locality: counts.DefaultLocalityOptions,
	}
	t.Run("ended", func(t *testing.T) {
		dir := bpfFolder(t)
		i := intercept(t, dir)
		i.Own(func(uint64, netip.AddrPort, netip.AddrPort) bool { return false })
		d := require.Value(New(Options{Agent: options, Interception: i}))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		redirected := func() bool {
			groups, err := i.redirect.Groups()
			return err == nil && len(groups) == 1
		}
		require.Eventually(t, "the cgroup's connects are redirected, or the agent has ended", func() bool { return redirected() || len(ended) > 0 })
		if err := d.Agent().Ready(); err != nil || !redirected() {
			t.Errorf("the cgroup's connects are not redirected, or the agent is not ready: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		gone(t, dir)
	})
	t.Run("given up", func(t *testing.T) {
		dir := bpfFolder(t)
		if err := intercept(t, dir).Abandon(); err != nil {
			t.Error(err)
		}
		gone(t, dir)
	})
	t.Run("no agent", func(t *testing.T) {
		dir := bpfFolder(t)
		bad := options
		bad.Capture.RingBytes = 12345 // no power of two
		if _, err := New(Options{Agent: bad, Interception: intercept(t, dir)}); err == nil {
			t.Error("an agent with a ring of 12,345 bytes was opened")
		}
		gone(t, dir)
	})
}

// The agent never waits for the interception: it gets the latest snapshot, and as
// many workers' ends as fit.
func TestAgentDoesNotWait(t *testing.T) {
	i := &Interception{found: make(chan *discover.Snapshot, 1), ended: make(chan lastPush, mostEnded)}
	var latest discover.Snapshot
	i.keepSnapshot(&discover.Snapshot{})
	i.keepSnapshot(&latest)
	if got := <-i.found; got != &latest {
		t.Error("an older snapshot is kept")
	}
	for n := range int32(mostEnded + 7) {
		i.lastPush(netip.MustParseAddrPort("192.0.2.1:8000"), n)
	}
	if len(i.ended) != mostEnded {
		t.Errorf("%d ends are kept, want %d", len(i.ended), mostEnded)
	}
	if first := <-i.ended; first.node != 0 {
		t.Errorf("the first end is node %d's", first.node)
	}
}

// Processes below a cgroup that is named belong to that one, and others to their own.
func TestProcessesBelowNamedCgroups(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "job"), 0o700))
	named := namedGroups(agent.Options{CgroupRoot: root, Cgroups: []string{"job"}})
	if len(named) != 1 || named[0].Cgroup != filepath.Join(root, "job") {
		t.Fatalf("named: %+v", named)
	}
	all := []listeners.Process{{Cgroup: named[0].Cgroup + "/worker"}, {Cgroup: named[0].Cgroup}, {Cgroup: named[0].Cgroup + "2"}}
	inNamed(all, named)
	for n, want := range []string{named[0].Cgroup, named[0].Cgroup, named[0].Cgroup + "2"} {
		if all[n].Cgroup != want {
			t.Errorf("process %d is in %s, want %s", n, all[n].Cgroup, want)
		}
	}
}
