package faults

import (
	"bytes"
	"context"
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

	"github.com/psidecar/psidecar/test/hosts"
)

// restartAfter is how long a service that has ended stays away.
const restartAfter = 100 * time.Millisecond

// A service is a process that is started again whenever it ends, until it is
// stopped.
type service struct {
	name    string // agent, proxy or planner
	host    *hosts.Host
	memory  *hosts.MemoryGroup // nil: no limit
	command func() (*exec.Cmd, error)

	mu      sync.Mutex
	process *hosts.Process
	log     bytes.Buffer
	killed  int  // by the test
	away    bool // not started again for now
	stopped bool
	failed  error // it ended by itself
	ended   sync.WaitGroup
}

func (s *service) String() string { return s.name + " on " + s.host.Name }

// Write keeps what the service logs.
func (s *service) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// run starts the service, and again when it ends.
func (s *service) run(t *testing.T) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.ended.Go(func() {
		for {
			<-s.current().Done()
			if s.hasEnded() {
				return
			}
			for time.Sleep(restartAfter); s.isAway(); time.Sleep(10 * time.Millisecond) {
			}
			if err := s.start(); err != nil {
				s.mu.Lock()
				s.failed = errors.Join(s.failed, err)
				s.stopped = true
				s.mu.Unlock()
				return
			}
		}
	})
}

func (s *service) start() error {
	cmd, err := s.command()
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = s
	} else if log, ok := cmd.Stderr.(*os.File); ok {
		defer log.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	p, err := s.host.StartIn(s.name, cmd)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	s.process = p
	return nil
}

func (s *service) current() *hosts.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// runs is an error while old has no successor.
func (s *service) runs(old *hosts.Process) error {
	if s.current() == old {
		return errors.New("it is not running yet")
	}
	return nil
}

// hasEnded reports whether the service is not to be started again, and notes
// an end that the test did not want.
func (s *service) hasEnded() bool {
	err := s.current().Wait(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	var exit *exec.ExitError
	wanted := err == nil || errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if !wanted {
		s.failed = errors.Join(s.failed, fmt.Errorf("%s ended: %w", s, err))
	}
	return s.stopped
}

func (s *service) isAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away && !s.stopped
}

// stayAway keeps the service from being started again when it ends.
func (s *service) stayAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *service) signal(sig os.Signal) error { return s.current().Signal(sig) }

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
	s.mu.Lock()
	again := s.stopped
	s.stopped = true
	p := s.process
	s.mu.Unlock()
	if again {
		return
	}
	p.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Errorf("%s does not end", s)
		p.Signal(syscall.SIGQUIT) // for its goroutines
		time.Sleep(time.Second)
		p.Kill()
	}
	s.ended.Wait()
	<-s.current().Done() // started meanwhile
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		t.Error(s.failed)
	}
	if i := bytes.Index(s.log.Bytes(), []byte("panic:")); i >= 0 {
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
func (s *service) logged(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.log.String(), text)
}

// descriptors is how many files the process has open, and how many of them are
// sockets.
func (s *service) descriptors(t *testing.T) (all, sockets int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.current().Pid())
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
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
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.current().Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
