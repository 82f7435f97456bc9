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
)

// Proxies are replaced by others that were started beside them, and agents in order,
// under a job that repeats nothing and never rests: its sums are exact, and it makes no
// connection anew. Its longest step is said beside that of the same job, for as long,
// beside which nothing is replaced.
func TestReplacedBeside(t *testing.T) {
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second})
	job := f.counting(50)
	r := f.startFor(f.unending(job), 4*time.Minute)
	r.training()
	began, before := time.Now(), f.redirected()
	for _, s := range f.sidecars {
		f.relieve(s)
		f.tookAll(s)
	}
	if after := f.redirected(); after != before {
		t.Errorf("the job made %v connections anew", after-before)
	}
	for _, s := range f.sidecars {
		f.replace(s, s.agent)
	}
	took, disturbed := time.Since(began), longestStep(r.exact())
	f.settled()
	f.unguarded()
	r = f.startFor(f.unending(job), 4*time.Minute)
	r.training()
	select {
	case <-r.ended:
	case <-time.After(took):
	}
	t.Logf("the longest step took %.0f ms, without replacements %.0f ms", 1000*disturbed, 1000*longestStep(r.exact()))
}

// relieve starts a proxy beside a sidecar's, and waits until it has taken its place.
func (f *fleet) relieve(s *sidecar) {
	f.t.Helper()
	old := s.proxy.Current()
	if err := s.proxy.Succeed(func(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), "PSIDECAR_REPLACE=true") }); err != nil {
		f.t.Fatal(err)
	}
	f.await("the next "+s.proxy.String(), func() error { return s.proxy.runs(old) })
	f.ready(s)
}

// SIGUSR2 has a proxy start the one that takes its place, of which systemd is told.
func TestProxyReplacesItself(t *testing.T) {
	t.Parallel()
	at := filepath.Join(folder(t), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	if err := os.Chmod(at, 0o777); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second, proxyEnv: []string{"NOTIFY_SOCKET=" + at}})
	r := f.startFor(f.unending(f.counting(50)), 3*time.Minute)
	r.training()
	before := f.redirected()
	s := f.sidecars[1]
	s.proxy.StayAway(true)
	old := s.proxy.Current()
	if err := s.proxy.signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
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
	if err := syscall.Kill(next, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.await("the proxy's end", func() error {
		if syscall.Kill(next, 0) == nil {
			return fmt.Errorf("process %d is there", next)
		}
		return nil
	})
	s.proxy.StayAway(false)
	f.ready(s)
}
