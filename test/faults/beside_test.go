package faults

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// Proxies are replaced by others that were started beside them, and agents in order,
// under a job that repeats nothing and never rests: its sums are exact, and it never
// reconnects. With PSIDECAR_EVAL its longest step is said beside that of the same job,
// for as long, beside which nothing is replaced.
func TestReplacedBeside(t *testing.T) {
	for _, c := range []struct {
		name   string
		config config
		pause  string // between a worker's steps
	}{
		{"default", config{}, "10ms"},
		{"without a pause", config{}, "0s"},
		{"TLS", config{proxyArgs: withTLS(t)}, "0s"},
		{"moved keys", config{plan: elsewhere(t, 4)}, "0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			compares := os.Getenv("PSIDECAR_EVAL") != ""
			if !compares {
				t.Parallel()
			}
			c.config.grace, c.config.keep = 10*time.Second, 15*time.Second
			f := newFleet(t, c.config)
			job := f.counting(50)
			job.Workers = hosts.Repeat(4, append(job.Workers[0], "--count-compute", c.pause))
			took, disturbed := f.relieved(job)
			if !compares {
				return
			}
			r := f.start(f.unending(job))
			f.plannedFor(r)
			select {
			case <-r.ended:
			case <-time.After(took):
			}
			t.Logf("the longest step took %.0f ms, without replacements %.0f ms", 1000*disturbed, 1000*longestStep(r.exact()))
			f.settled()
			f.unguarded()
		})
	}
}

// relieved runs a job while all proxies and agents are replaced, and returns how long
// that took and the job's longest step.
func (f *fleet) relieved(job hosts.Job) (took time.Duration, longest float64) {
	f.t.Helper()
	r := f.start(f.unending(job))
	f.plannedFor(r)
	f.allUsed()
	began, before := time.Now(), f.redirected()
	for _, s := range f.sidecars {
		f.relieve(s)
		f.tookAll(s)
	}
	if after := f.redirected(); after != before {
		f.t.Errorf("the job made %v connections anew", after-before)
	}
	for _, s := range f.sidecars {
		f.replace(s, s.agent)
	}
	took = time.Since(began)
	longest = longestStep(r.exact())
	f.settled()
	f.unguarded()
	return took, longest
}

// plannedFor waits until a job trains and, where the fleet has a plan, its keys are where
// that has them.
func (f *fleet) plannedFor(r *run) {
	f.t.Helper()
	r.training()
	if len(f.config.plan) == 0 {
		return
	}
	f.propose()
	f.psidecar("plan", "apply", "--wait", "5m")
	f.stand(displaced)
}

// relieve starts a proxy beside a sidecar's, and waits until it has taken its place.
func (f *fleet) relieve(s *sidecar) {
	f.t.Helper()
	old := s.proxy.Current()
	require.NoError(f.t, s.proxy.Succeed(func(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), "PSIDECAR_REPLACE=true") }))
	f.await("the next "+s.proxy.String(), func() error { return s.proxy.runs(old) })
	f.ready(s)
}

// SIGUSR2 has a proxy start its successor, and systemd is notified.
func TestProxyReplacesItself(t *testing.T) {
	t.Parallel()
	at := filepath.Join(folder(t), "notify")
	systemd := require.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"}))(t)
	defer systemd.Close()
	require.NoError(t, os.Chmod(at, 0o777))
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second, proxyEnv: []string{"NOTIFY_SOCKET=" + at}})
	r := f.start(f.unending(f.counting(50)))
	r.training()
	f.allUsed()
	before := f.redirected()
	s := f.sidecars[1]
	s.proxy.StayAway(true)
	old := s.proxy.Current()
	require.NoError(t, s.proxy.signal(syscall.SIGUSR2))
	systemd.SetReadDeadline(time.Now().Add(time.Minute))
	said := make([]byte, 100)
	n, err := systemd.Read(said)
	if err != nil {
		t.Fatalf("systemd is told nothing: %v; the proxy says:\n%s", err, tail(s.proxy.log.String(), 20))
	}
	number, ok := strings.CutPrefix(string(said[:n]), "MAINPID=")
	next, err := strconv.Atoi(number)
	if err != nil || !ok || next == old.Pid() {
		t.Fatalf("systemd hears %q", said[:n])
	}
	f.await("the end of the proxy", func() error { // its log stays open while the next one has it
		if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", old.Pid())); err == nil {
			return fmt.Errorf("process %d is %s", old.Pid(), program)
		}
		return nil
	})
	f.ready(s)
	f.tookAll(s)
	if after := f.redirected(); after != before {
		t.Errorf("the job made %v connections anew", after-before)
	}
	r.exact()
	require.NoError(t, syscall.Kill(next, syscall.SIGTERM))
	f.await("the proxy's end", func() error {
		if syscall.Kill(next, 0) == nil {
			return fmt.Errorf("process %d is there", next)
		}
		return nil
	})
	s.proxy.StayAway(false)
	f.ready(s)
}
