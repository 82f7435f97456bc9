package hoststest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// A Service is a process on a host that is restarted whenever it ends, as by a service manager,
// until it is stopped. Its methods may be called from any goroutine. The exported fields must
// not change after Run.
type Service struct {
	Group string // cgroup in which it runs, and its name
	Host  *hosts.Host
	// Command returns the command of the next process. A file as its Stderr is closed once the
	// process has it.
	Command func() (*exec.Cmd, error)
	Away    time.Duration // time from an end to the next start
	// Ended, if set, is called at each end, before the next start.
	Ended func(p *hosts.Process, err error)
	// Failed is called when a process could not be started. The service then stays down.
	Failed func(err error)

	mu      sync.Mutex // guards what follows
	process *hosts.Process
	next    *hosts.Process // becomes process when that has ended; nil: none
	begun   time.Time      // of process
	away    bool           // not restarted for now
	stopped bool
	done    sync.WaitGroup
}

// String is for people.
func (s *Service) String() string { return s.Group + " on " + s.Host.Name }

// Run starts the service, and restarts it in the background. It returns the error of the first
// start.
func (s *Service) Run() error {
	if err := s.start(); err != nil {
		return err
	}
	s.done.Go(func() {
		for {
			p := s.Current()
			err := p.Wait(context.Background())
			if s.Ended != nil {
				s.Ended(p, err)
			}
			if s.Stopped() {
				return
			}
			if s.takeNext() {
				continue
			}
			// At least the pause, and then as long as StayAway asks.
			for time.Sleep(s.Away); s.isAway(); time.Sleep(10 * time.Millisecond) {
			}
			if err := s.start(); err != nil {
				s.Failed(err)
				return
			}
			if s.Current() == p {
				return // stopped meanwhile
			}
		}
	})
	return nil
}

// start starts the next process, unless the service was stopped.
func (s *Service) start() error {
	cmd, err := s.Command()
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if log, ok := cmd.Stderr.(*os.File); ok {
		defer log.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	p, err := s.Host.StartIn(s.Group, cmd)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	s.process, s.begun = p, time.Now()
	return nil
}

// Succeed starts a process beside the present one, which becomes the service's when that has
// ended, as in an upgrade without a gap. change, if not nil, modifies its command.
func (s *Service) Succeed(change func(*exec.Cmd)) error {
	cmd, err := s.Command()
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if log, ok := cmd.Stderr.(*os.File); ok {
		defer log.Close()
	}
	if change != nil {
		change(cmd)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.next != nil {
		return fmt.Errorf("%s: it is stopped, or has a successor", s)
	}
	if s.next, err = s.Host.StartIn(s.Group, cmd); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// takeNext makes the process started by Succeed the service's, if there is one.
func (s *Service) takeNext() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		return false
	}
	s.process, s.begun, s.next = s.next, time.Now(), nil
	return true
}

// Current returns the process that runs, or ran last.
func (s *Service) Current() *hosts.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Begun returns when the current process was started, or took over.
func (s *Service) Begun() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// Running reports whether the current process has not ended.
func (s *Service) Running() bool {
	select {
	case <-s.Current().Done():
		return false
	default:
		return true
	}
}

// Stopped reports whether Stop was called.
func (s *Service) Stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// isAway reports whether the service is not to be restarted now.
func (s *Service) isAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away && !s.stopped
}

// StayAway keeps the service from being restarted while away is set.
func (s *Service) StayAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// End ends the current process by a signal and waits until it has ended, for at most patience.
// A process that takes longer gets SIGQUIT, to log its goroutines; if even that has no effect,
// it is killed, and the error says what its threads were doing in the kernel.
func (s *Service) End(sig syscall.Signal, patience time.Duration) error {
	p := s.Current()
	p.Signal(sig) // it may have ended
	select {
	case <-p.Done():
		return nil
	case <-time.After(patience):
	}
	threads := threadsOf(p)
	p.Signal(syscall.SIGQUIT)
	p.Resume() // in case it was stopped
	select {
	case <-p.Done():
		return fmt.Errorf("%s does not end within %v of %v; its goroutines are in its log; its threads:\n%s", s, patience, sig, threads)
	case <-time.After(5 * time.Second):
	}
	threads += "after SIGQUIT:\n" + threadsOf(p)
	p.Kill()
	<-p.Done()
	return fmt.Errorf("%s does not end within %v of %v, nor of SIGQUIT; its threads:\n%s", s, patience, sig, threads)
}

// Stop ends the service in order, for good. Only the first call does anything, and first says
// so.
func (s *Service) Stop(patience time.Duration) (first bool, err error) {
	s.mu.Lock()
	first = !s.stopped
	s.stopped = true
	// Under the lock with stopped: no successor is started after that.
	next := s.next
	s.mu.Unlock()
	if !first {
		return false, nil
	}
	if next != nil { // it has not become the service's
		next.Kill()
	}
	// If the loop has taken over a successor just before, this ends that one.
	err = s.End(syscall.SIGTERM, patience)
	s.done.Wait()
	return true, err
}

// Killed reports whether an error of Wait means that the process died of SIGKILL.
func Killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}
