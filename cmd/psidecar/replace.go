package main

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

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// A proxy is replaced without a pause by one that is started beside it: with --replace
// it waits for its turn at the agent. SIGUSR2 has a proxy start that one itself, of the
// program that is at its path by then.

// begins is how often a proxy that replaces another tries to begin, twice a second. An agent
// that has just started may not know the other proxy yet, and lets this one begin while the
// ports of the other are in use.
const begins = 20

// inTurn calls carry, with --replace when the proxy before this one has ended. It returns nil
// if ctx ends while it waits.
func (f *proxyFlags) inTurn(ctx context.Context, carry func() error) error {
	if !f.replace {
		return carry()
	}
	// The turn is asked for again each time: another proxy may have been given it meanwhile.
	for n := 1; ; n++ {
		if err := daemon.AwaitTurn(ctx, f.socket); err != nil {
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
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// A nextProxy is the process that replaces this one, if this one has started it. Its methods
// may be called concurrently.
type nextProxy struct {
	program string // path of this program, where an update may have put another by then

	mu      sync.Mutex  // guards process
	process *os.Process // nil: there is none
}

// start starts the next proxy whenever SIGUSR2 comes, until ctx ends. A failure is logged and
// changes nothing about this proxy: it goes on, and the signal may be sent again.
func (n *nextProxy) start(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
		}
		if err := n.begin(); err != nil {
			slog.Error("cannot start the successor", "error", err)
		}
	}
}

// begin starts the next proxy with this one's arguments, environment and output. It fails if
// one waits for its turn already. The process is not waited for: it starts, asks the agent for
// its turn and is silent until then.
func (n *nextProxy) begin() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		return fmt.Errorf("process %d is already waiting for its turn", n.process.Pid)
	}
	// Not bound to a context: it is to go on when this process ends.
	cmd := exec.Command(n.program, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "WATCHDOG_PID=") // systemd's watchdog is to hear from the next one
	}), "PSIDECAR_REPLACE=true")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	n.process = cmd.Process
	slog.Info("successor started", "pid", cmd.Process.Pid)
	// The next proxy outlives this one, so that Wait returns here only if it has failed to take
	// over.
	go func() {
		err := cmd.Wait()
		slog.Error("the successor exited before its turn", "error", err)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.process = nil
	}()
	return nil
}

// takesOver tells systemd which process is the unit's main one from now on. If this process has
// not started the next one, it was started as another unit or by hand, and nothing is to be
// told.
func (n *nextProxy) takesOver() {
	n.mu.Lock()
	defer n.mu.Unlock()
	// It was started by hand or by another unit, and systemd knows it already.
	if n.process == nil {
		return
	}
	if err := health.TellMainProcess(n.process.Pid); err != nil {
		slog.Warn("cannot notify systemd of the successor's PID", "error", err)
	}
}

// newNextProxy returns a nextProxy without a process, and the channel on which SIGUSR2 arrives
// from now on.
func newNextProxy() (n *nextProxy, signals chan os.Signal) {
	// One place is enough: signals that come while another waits ask for the same.
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	// The path is kept from the start. Once the file has been replaced, Linux says of it that
	// it is deleted.
	n = &nextProxy{program: os.Args[0]}
	if path, err := os.Executable(); err == nil {
		n.program = path
	}
	return n, signals
}
