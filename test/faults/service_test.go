package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// restartAfter is how long a service that has ended stays away.
const restartAfter = 100 * time.Millisecond

// A service is a process of psidecar's that the test kills, and that says in its log
// why it ended.
type service struct {
	hoststest.Service
	memory *hoststest.MemoryGroup // nil: no limit
	log    hosts.Log

	mu     sync.Mutex // guards what follows
	killed int        // by the test
	failed error      // it ended by itself
}

// run starts the service, and again when it ends.
func (s *service) run(t *testing.T) {
	t.Helper()
	s.Away, s.Failed = restartAfter, s.fail
	next := s.Command
	s.Command = func() (*exec.Cmd, error) {
		cmd, err := next()
		if err == nil && cmd.Stderr == nil {
			cmd.Stderr = &s.log
		}
		return cmd, err
	}
	s.Ended = func(_ *hosts.Process, err error) {
		if err != nil && !hoststest.Killed(err) {
			s.fail(fmt.Errorf("%s ended: %w", s, err))
		}
	}
	require.NoError(t, s.Run())
}

// fail notes what the test did not want.
func (s *service) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

// runs is an error while old has no successor.
func (s *service) runs(old *hosts.Process) error {
	if s.Current() == old {
		return errors.New("it is not running yet")
	}
	return nil
}

func (s *service) signal(sig os.Signal) error { return s.Current().Signal(sig) }

// kill ends the process at once; nothing happens where it is not running.
func (s *service) kill() {
	if s.signal(syscall.SIGKILL) == nil {
		s.mu.Lock()
		s.killed++
		s.mu.Unlock()
	}
}

// stop ends the service in order and reports whatever went wrong in its life.
func (s *service) stop(t *testing.T) {
	t.Helper()
	first, err := s.Stop(time.Minute)
	if !first {
		return
	}
	if err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		t.Error(s.failed)
	}
	if s.logged("panic:") {
		t.Errorf("%s panicked", s)
	}
	if t.Failed() {
		t.Logf("%s, killed %d times, says:\n%s", s, s.killed, tail(s.log.String(), 40))
	}
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	if len(all) > lines {
		all = append([]string{fmt.Sprintf("... %d lines", len(all)-lines)}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}

// logged reports whether the service has logged a text.
func (s *service) logged(text string) bool { return strings.Contains(s.log.String(), text) }

// descriptors is how many files the process has open, and how many of them are
// sockets.
func (s *service) descriptors(t *testing.T) (all, sockets int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.Current().Pid())
	files := require.Value(os.ReadDir(dir))(t)
	for _, f := range files {
		if target, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	return len(files), sockets
}

// peak is the most memory that the process has held, in bytes.
func (s *service) peak(t *testing.T) int {
	t.Helper()
	status := require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Current().Pid())))(t)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	n := require.Value(strconv.Atoi(strings.Fields(rest)[0]))(t)
	return n << 10
}
