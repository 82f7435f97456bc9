package life

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/test/hosts"
)

// restartAfter is how long a service that has ended stays away.
const restartAfter = 500 * time.Millisecond

// Kinds of services.
const (
	agent   = "agent"
	proxy   = "proxy"
	planner = "planner"
)

// A service is a process that is started again whenever it ends, as a service
// manager does, until it is stopped.
type service struct {
	kind string
	host *hosts.Host
	uid  uint32
	args []string
	log  string // file
	// ended is told how a process ended that nobody had ended.
	ended func(*service, error)

	mu      sync.Mutex
	process *hosts.Process
	expect  *hosts.Process // it ends because it was told to
	begun   time.Time
	said    int64 // bytes of the log before the present process
	away    bool  // not started again for now
	stopped bool
	done    sync.WaitGroup
}

func (s *service) String() string { return s.kind + " on " + s.host.Name }

// run starts the service, and again when it ends.
func (s *service) run() error {
	if err := s.start(); err != nil {
		return err
	}
	s.done.Go(func() {
		for failing := false; ; {
			p := s.current()
			err := p.Wait(context.Background())
			s.mu.Lock()
			expected, stopped, brief := s.expect == p, s.stopped, time.Since(s.begun) < recovery
			s.mu.Unlock()
			again := failing && brief // the same as before, as a rule
			failing = !expected || err != nil && !killed(err)
			if failing && !again {
				s.ended(s, err)
			}
			if stopped {
				return
			}
			for time.Sleep(restartAfter); s.isAway(); time.Sleep(10 * time.Millisecond) {
			}
			if err := s.start(); err != nil {
				s.ended(s, err)
				return
			}
		}
	})
	return nil
}

func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

func (s *service) start() error {
	cmd := exec.Command(s.args[0], s.args[1:]...)
	if s.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.uid}}
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	said, err := log.Stat()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	p, err := s.host.StartIn(s.kind, cmd)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	s.process, s.begun, s.said = p, time.Now(), said.Size()
	return nil
}

func (s *service) current() *hosts.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// running reports whether its process is there.
func (s *service) running() bool {
	select {
	case <-s.current().Done():
		return false
	default:
		return true
	}
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

// end ends the present process by a signal and waits until it has; patience
// bounds how long that may take.
func (s *service) end(sig syscall.Signal, patience time.Duration) error {
	s.mu.Lock()
	p := s.process
	s.expect = p
	s.mu.Unlock()
	p.Signal(sig) // it may have ended
	select {
	case <-p.Done():
		return nil
	case <-time.After(patience):
	}
	p.Signal(syscall.SIGQUIT) // for its goroutines, in its log
	select {
	case <-p.Done():
	case <-time.After(5 * time.Second):
		p.Kill()
		<-p.Done()
	}
	return fmt.Errorf("%s does not end within %v of %v; its goroutines are in its log", s, patience, sig)
}

// mayEnd says that the present process may be ended by somebody else.
func (s *service) mayEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expect = s.process
}

// stop ends the service in order, for good.
func (s *service) stop() error {
	s.mu.Lock()
	again := s.stopped
	s.stopped = true
	s.mu.Unlock()
	if again {
		return nil
	}
	err := s.end(syscall.SIGTERM, time.Minute)
	s.done.Wait()
	return err
}

// lastWords are what the present process has said of why it ended.
func (s *service) lastWords() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	s.mu.Lock()
	said := s.said
	s.mu.Unlock()
	text = text[min(said, int64(len(text))):]
	if i := graveIn(text); i >= 0 {
		return string(text[i:min(len(text), i+3000)])
	}
	return string(text[max(0, len(text)-1000):])
}

// tail returns the last lines of its log.
func (s *service) tail(lines int) string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error() + "\n"
	}
	all := bytes.SplitAfter(text, []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines-1):], nil))
}

// grave returns what the log says that no process may say; empty: nothing.
func (s *service) grave() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	if i := graveIn(text); i >= 0 {
		return string(text[i:min(len(text), i+3000)])
	}
	return ""
}

// graveIn is where a log says something that no process may say, negative where
// it does not.
func graveIn(text []byte) int {
	for _, sign := range []string{"panic:", "fatal error:", "SIGBUS", "SIGSEGV", "DATA RACE"} {
		if i := bytes.Index(text, []byte(sign)); i >= 0 {
			return i
		}
	}
	return -1
}

// status returns a number of kB of /proc/PID/status in bytes, 0 where the
// process is gone.
func (s *service) status(name string) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.current().Pid()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), name+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n << 10
}
