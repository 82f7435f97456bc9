package hosts_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// shell is a program that is a line of shell.
func shell(line string) hosts.Program { return hosts.Program{"/bin/sh", "-c", line} }

const printPart = `echo $DMLC_ROLE $DMLC_NUM_SERVER $DMLC_NUM_WORKER $DMLC_PS_ROOT_URI $DMLC_NODE_HOST $EXTRA; [ "$DMLC_PS_ROOT_PORT" -gt 0 ]`

func TestNodesAreToldTheirParts(t *testing.T) {
	loopback := []string{
		"scheduler 1 2 127.0.0.1 127.0.0.1 more", "server 1 2 127.0.0.1 127.0.0.1 more",
		"worker 1 2 127.0.0.1 127.0.0.1 more", "worker 1 2 127.0.0.1 127.0.0.1 more",
	}
	v6 := make([]string, len(loopback))
	for i, line := range loopback {
		v6[i] = strings.ReplaceAll(line, "127.0.0.1", "::1")
	}
	for name, test := range map[string]struct {
		hosts int
		ipv6  bool
		want  []string
	}{
		"loopback":      {want: loopback},
		"loopback IPv6": {ipv6: true, want: v6},
		"two hosts": {hosts: 2, want: []string{
			"scheduler 1 2 198.18.0.1 198.18.0.1 more", "server 1 2 198.18.0.1 198.18.0.1 more",
			"worker 1 2 198.18.0.1 198.18.0.1 more", "worker 1 2 198.18.0.1 198.18.0.2 more",
		}},
		"two hosts IPv6": {hosts: 2, ipv6: true, want: []string{
			"scheduler 1 2 2001:2::1 2001:2::1 more", "server 1 2 2001:2::1 2001:2::1 more",
			"worker 1 2 2001:2::1 2001:2::1 more", "worker 1 2 2001:2::1 2001:2::2 more",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			j := hosts.Job{Scheduler: shell(printPart), Servers: hosts.Repeat(1, shell(printPart)), Workers: hosts.Repeat(2, shell(printPart)),
				IPv6: test.ipv6, Env: []string{"EXTRA=more"}}
			if test.hosts > 0 {
				j.Hosts = hoststest.New(t, hosts.Config{Hosts: test.hosts}).Hosts()
			}
			r := require.Value(j.Run(t.Context()))(t)
			for i, n := range r.Nodes() {
				if got := strings.TrimSpace(n.Stdout.String()); got != test.want[i] {
					t.Errorf("%s %d was told %q, want %q", n.Role, n.Index, got, test.want[i])
				}
			}
		})
	}
}

func TestOneFailureEndsTheJob(t *testing.T) {
	r, err := hosts.Job{
		Scheduler: shell("exec sleep 1000"), Servers: hosts.Repeat(2, shell("exec sleep 1000")),
		Workers: []hosts.Program{shell("exec sleep 1000"), shell("echo it broke >&2; exit 3")},
	}.Start(t.Context())
	require.NoError(t, err)
	err = r.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("got %v, want exit code 3", err)
	}
	if err == nil || !strings.Contains(err.Error(), "worker 1") || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("the error %q does not name worker 1 and what it said", err)
	}
	for _, n := range r.Nodes()[:4] {
		if !errors.As(n.Err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%s %d ended with %v, want it killed", n.Role, n.Index, n.Err)
		}
	}
}

func TestContextEndsTheJob(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := require.Value(hosts.Job{Scheduler: shell("exec sleep 1000"), Servers: hosts.Repeat(1, shell("exec sleep 1000"))}.Start(ctx))(t)
	cancel()
	if err := r.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestSignalReachesTheProcess(t *testing.T) {
	r := require.Value(hosts.Job{Scheduler: shell("exec sleep 1000")}.Start(t.Context()))(t)
	require.NoError(t, r.Scheduler.Signal(syscall.SIGTERM))
	var exit *exec.ExitError
	if err := r.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("got %v, want SIGTERM", err)
	}
}

func TestStartNamesTheProgramThatIsNotThere(t *testing.T) {
	_, err := hosts.Job{Scheduler: shell("exec sleep 1000"), Servers: hosts.Repeat(1, hosts.Program{"/nonexistent"})}.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "/nonexistent") || !strings.Contains(err.Error(), "server 0") {
		t.Errorf("got %v, want server 0 and /nonexistent", err)
	}
}
