package hosts_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// pair connects host a to host b's address by TCP and returns both ends.
func pair(t testing.TB, a, b *hosts.Host, at netip.Addr) (from, to *net.TCPConn) {
	t.Helper()
	l := require.Value(b.Listen(t.Context(), "tcp", netip.AddrPortFrom(at, 0).String()))(t)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := require.Value(a.Dial(ctx, "tcp", l.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	s := require.Value(l.Accept())(t)
	t.Cleanup(func() { s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestHostsReachEachOther(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 3, Names: []string{"scheduler", "server", "worker"}})
	for _, a := range n.Hosts() {
		for _, b := range n.Hosts() {
			for _, addr := range []netip.Addr{b.IPv4, b.IPv6} {
				from, to := pair(t, a, b, addr)
				require.Value(io.WriteString(from, a.Name))(t)
				got := make([]byte, len(a.Name))
				if _, err := io.ReadFull(to, got); err != nil || string(got) != a.Name {
					t.Errorf("%s to %s at %s: got %q, %v", a.Name, b.Name, addr, got, err)
				}
			}
		}
	}
}

func TestProcessRunsOnItsHostFromTheStart(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	mount := require.CgroupV2(t)
	for _, h := range n.Hosts() {
		var want string
		if err := h.Do(func() (err error) {
			want, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		group := require.Value(filepath.Rel(mount, filepath.Join(h.Cgroup(), "job")))(t)
		want += " /" + group

		cmd := role(t, "whereami")
		var out strings.Builder
		cmd.Stdout = &out
		p := require.Value(h.StartIn("job", cmd))(t)
		require.NoError(t, p.Wait(t.Context()))
		if got := strings.TrimSpace(out.String()); got != want {
			t.Errorf("on %s the process was in %q, want %q", h.Name, got, want)
		}
	}
}

func TestFailedProcessTellsItsExitCode(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	err := n.Host(0).Run(t.Context(), exec.Command("sh", "-c", "exit 7"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("got %v, want exit code 7", err)
	}
	if _, err := n.Host(0).Start(exec.Command("/nonexistent")); err == nil {
		t.Error("a program that is not there was started")
	}
}

// state is the letter of /proc/PID/stat: R, S, T and so on.
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "gone"
	}
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
}

func TestPauseResumeAndKill(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	p := require.Value(n.Host(0).Start(exec.Command("sleep", "1000")))(t)
	require.NoError(t, p.Pause())
	require.Eventually(t, "stopped", func() bool { return state(t, p.Pid()) == "T" })
	require.NoError(t, p.Resume())
	require.Eventually(t, "running again", func() bool { return state(t, p.Pid()) == "S" })
	require.NoError(t, p.Kill())
	var exit *exec.ExitError
	if err := p.Wait(t.Context()); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("after Kill: %v", err)
	}
	if err := p.Resume(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to an ended process: %v, want os.ErrProcessDone", err)
	}
}

func TestWaitKillsWhenItsContextEnds(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	ctx, cancel := context.WithCancel(t.Context())
	p := require.Value(n.Host(0).Start(exec.Command("sleep", "1000")))(t)
	cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if s := state(t, p.Pid()); s != "gone" {
		t.Errorf("the process is still there, state %s", s)
	}
}

func TestCloseEndsProcessesAndRemovesAll(t *testing.T) {
	require.Root(t)
	require.CgroupV2(t)
	n := require.Value(hosts.New(hosts.Config{Hosts: 2, Rate: 100e6}))(t)
	h := n.Host(1)
	// A process that has left its parent and its process group behind.
	p := require.Value(h.StartIn("job", exec.Command("sh", "-c", "setsid sleep 1000 & sleep 1000")))(t)
	require.NoError(t, n.Close())
	select {
	case <-p.Done():
	default:
		t.Error("the process was not waited for")
	}
	if _, err := os.Stat(n.Cgroup()); !os.IsNotExist(err) {
		t.Errorf("cgroup %s: %v", n.Cgroup(), err)
	}
	if _, err := os.Stat("/run/netns/" + h.Namespace()); !os.IsNotExist(err) {
		t.Errorf("namespace %s: %v", h.Namespace(), err)
	}
	if _, err := h.Start(exec.Command("true")); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("start after Close: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestHostsOfAKilledProcessAreReaped(t *testing.T) {
	require.Root(t)
	require.CgroupV2(t)
	owner := role(t, "owner")
	stdout := require.Value(owner.StdoutPipe())(t)
	require.NoError(t, owner.Start())
	var namespace, cgroup string
	var pid int
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &namespace, &cgroup, &pid)
	}
	if err != nil {
		owner.Process.Kill()
		t.Fatalf("the owner said %q: %v", line, err)
	}
	namespace = "/run/netns/" + namespace

	require.NoError(t, hosts.Reap())
	for _, path := range []string{namespace, cgroup} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("reaped while its owner runs: %v", err)
		}
	}
	require.NoError(t, owner.Process.Kill())
	owner.Wait()
	require.NoError(t, hosts.Reap())
	for _, path := range []string{namespace, cgroup, filepath.Dir(cgroup) + "/absent"} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	require.Eventually(t, "process on the host dead", func() bool {
		s := state(t, pid)
		return s == "gone" || s == "Z" // a zombie where nothing reaps orphans
	})
}

func TestFailureLeavesNothingBehind(t *testing.T) {
	require.Root(t)
	mount := require.CgroupV2(t)
	poor := role(t, "poor")
	stdout := require.Value(poor.StdoutPipe())(t)
	require.NoError(t, poor.Start())
	defer poor.Wait()
	defer poor.Process.Kill()
	said := require.Value(io.ReadAll(stdout))(t)
	if !strings.Contains(string(said), syscall.EMFILE.Error()) {
		t.Fatalf("with 100 file descriptors: %q, want %q", said, syscall.EMFILE.Error())
	}
	for _, dir := range []string{"/run/netns", mount} {
		left := require.Value(filepath.Glob(fmt.Sprintf("%s/psd-*-%d-*", dir, poor.Process.Pid)))(t)
		if len(left) > 0 {
			t.Errorf("left behind: %q\nit said %s", left, said)
		}
	}
}

func TestWrongConfigIsRefused(t *testing.T) {
	for name, cfg := range map[string]hosts.Config{
		"no hosts":       {},
		"too many":       {Hosts: hosts.MaxHosts + 1},
		"few names":      {Hosts: 2, Names: []string{"a"}},
		"twice":          {Hosts: 2, Names: []string{"a", "a"}},
		"empty name":     {Hosts: 1, Names: []string{""}},
		"path":           {Hosts: 1, Names: []string{"../a"}},
		"reserved":       {Hosts: 1, Names: []string{"switch"}},
		"long name":      {Hosts: 1, Names: []string{"abcdefghijklmnopq"}},
		"MTU too small":  {Hosts: 1, MTU: 67},
		"MTU too large":  {Hosts: 1, MTU: 65536},
		"negative hosts": {Hosts: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if n, err := hosts.New(cfg); err == nil {
				n.Close()
				t.Errorf("%+v was accepted", cfg)
			}
		})
	}
}

func TestSysctlIsTheHostsOwn(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	require.NoError(t, n.Host(0).Sysctl("net/ipv4/tcp_retries2", "7"))
	for i, want := range []string{"7", "15"} {
		if err := n.Host(i).Do(func() error {
			got, err := os.ReadFile("/proc/sys/net/ipv4/tcp_retries2")
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("host %d has %q, want %s", i, got, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Host(0).Sysctl("net/ipv4/no_such_setting", "1"); err == nil {
		t.Error("a setting that is not there was set")
	}
}

func TestManyHosts(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 64, Pairs: true})
	from, to := pair(t, n.Host(0), n.Host(63), n.Host(63).IPv6)
	transfer(t, from, to, random(1000), 0)
	traffic := require.Value(n.Traffic())(t)
	if got := traffic[0][63].Payload; got < 1000 {
		t.Errorf("payload of host 0 to 63 is %d, want 1000", got)
	}
}

func TestSeveralNetsReapAtOnce(t *testing.T) {
	require.Root(t)
	require.CgroupV2(t)
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			n, err := hosts.New(hosts.Config{Hosts: 2})
			if err != nil {
				return err
			}
			return errors.Join(hosts.Reap(), n.Host(1).Run(t.Context(), exec.Command("true")), n.Close())
		})
	}
	require.NoError(t, g.Wait())
}
