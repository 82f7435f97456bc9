// This file replaces a proxy without a pause by one that is started beside it: with --replace
// it waits for its turn at the agent. SIGUSR2 has a proxy start that one itself, of the
// program that is at its path by then.

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/health"
)

// begins is how often a proxy that replaces another tries to begin, and beginAgain the time
// between two attempts. An agent that has just started may not know the other proxy yet, and
// lets this one begin while the ports of the other are in use.
const (
	begins     = 20
	beginAgain = 500 * time.Millisecond
)

// CarryInTurn calls carry when the proxy before this one has ended, which the agent at the
// socket says (--replace). It returns nil if ctx ends while it waits.
func CarryInTurn(ctx context.Context, socket string, carry func() error) error {
	// The turn is asked for again each time: another proxy may have been given it meanwhile.
	for n := 1; ; n++ {
		if err := handover.AwaitTurn(ctx, socket); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("--replace: %w", err)
		}
		err := carry()
		// No other error goes away by itself.
		if n == begins || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		slog.Warn("the previous proxy is still running", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(beginAgain):
		}
	}
}

// A Successor is the process that replaces this one, if this one has started it. Its methods
// may be called concurrently.
type Successor struct {
	program string // path of this program, where an update may have put another by then
	signals chan os.Signal

	mu      sync.Mutex  // guards process
	process *os.Process // nil: there is none
}

// NewSuccessor returns a Successor without a process. SIGUSR2 is taken from now on, until Close;
// before, the signal would end this process.
func NewSuccessor() *Successor {
	// One place is enough: signals that come while another waits ask for the same.
	s := &Successor{program: os.Args[0], signals: make(chan os.Signal, 1)}
	signal.Notify(s.signals, syscall.SIGUSR2)
	// The path is kept from the start. Once the file has been replaced, Linux says of it that
	// it is deleted.
	if path, err := os.Executable(); err == nil {
		s.program = path
	}
	return s
}

// Close gives SIGUSR2 back.
func (s *Successor) Close() { signal.Stop(s.signals) }

// Run starts the next proxy whenever SIGUSR2 comes, until ctx ends. A failure is logged and
// changes nothing about this proxy: it goes on, and the signal may be sent again. Run may be
// called again after it has returned.
func (s *Successor) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.signals:
		}
		if err := s.begin(); err != nil {
			slog.Error("cannot start the successor", "error", err)
		}
	}
}

// begin starts the next proxy with this one's arguments, environment and output. It fails if
// one waits for its turn already. The process is not waited for: it starts, asks the agent for
// its turn and is silent until then.
func (s *Successor) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		return fmt.Errorf("process %d is already waiting for its turn", s.process.Pid)
	}
	// Not bound to a context: it is to go on when this process ends.
	cmd := exec.Command(s.program, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "WATCHDOG_PID=") // systemd's watchdog is to hear from the next one
	}), "PSIDECAR_REPLACE=true")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	s.process = cmd.Process
	slog.Info("successor started", "pid", cmd.Process.Pid)
	// The next proxy outlives this one, so that Wait returns here only if it has failed to take
	// over.
	go func() {
		err := cmd.Wait()
		slog.Error("the successor exited before its turn", "error", err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.process = nil
	}()
	return nil
}

// TellSystemd tells systemd which process is the unit's main one from now on.
func (s *Successor) TellSystemd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	// It was started by hand or as another unit, and nothing is to be told.
	if s.process == nil {
		return
	}
	if err := health.TellMainProcess(s.process.Pid); err != nil {
		slog.Warn("cannot notify systemd of the successor's PID", "error", err)
	}
}
