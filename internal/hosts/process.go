package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// A Process is a process that was started on a host. Its methods may be called from any
// goroutine.
type Process struct {
	host *Host
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of cmd.Wait; valid once done is closed
}

// Start starts a command on the host, in its network namespace and cgroup from the first
// instruction. The process is killed when the host's Net is closed, and when this process dies.
// cmd must not be started yet; its SysProcAttr is completed. Standard output and error go where
// cmd says.
func (h *Host) Start(cmd *exec.Cmd) (*Process, error) { return h.start(h.cgroup, cmd) }

// StartIn is Start in a cgroup of that name inside the host's.
func (h *Host) StartIn(group string, cmd *exec.Cmd) (*Process, error) {
	dir, err := h.Group(group)
	if err != nil {
		return nil, err
	}
	return h.start(dir, cmd)
}

// start starts a command in a cgroup, given by its folder.
func (h *Host) start(cgroup string, cmd *exec.Cmd) (*Process, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, fmt.Errorf("starting %s on host %s: %w", cmd.Path, h.Name, err)
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// A process group of its own: an interrupt typed on the terminal is for
	// the owner, which then ends its hosts in order.
	cmd.SysProcAttr.Setpgid = true
	// Held until the process is in its cgroup: Close, which waits for it, then kills everything
	// that was started.
	h.net.state.RLock()
	defer h.net.state.RUnlock()
	if h.net.closed {
		return nil, fmt.Errorf("starting %s on host %s: %w", cmd.Path, h.Name, net.ErrClosed)
	}
	if err := h.net.spawn.do(h.ns, cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s on host %s: %w", cmd.Path, h.Name, err)
	}
	p := &Process{host: h, cmd: cmd, done: make(chan struct{})}
	// The only caller of cmd.Wait. Everybody else waits for done.
	h.processes.Go(func() {
		p.err = cmd.Wait()
		close(p.done)
	})
	return p, nil
}

// Run runs a command on the host until it ends, or kills it when ctx ends first.
func (h *Host) Run(ctx context.Context, cmd *exec.Cmd) error {
	p, err := h.Start(cmd)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Host is where the process runs.
func (p *Process) Host() *Host { return p.host }

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and its output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process to end and returns an *exec.ExitError if it failed. When ctx ends
// first, the process is killed and the errors are joined.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.cmd.Process.Kill() // fails only where it has ended, which is fine
		<-p.done
		return errors.Join(ctx.Err(), p.err)
	}
}

// CPU returns the processor time that the process took, user and system; 0 before it has ended.
func (p *Process) CPU() time.Duration {
	select {
	case <-p.done:
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	default:
		return 0
	}
}

// Signal sends a signal to the process.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to process %d on host %s: %w", sig, p.Pid(), p.host.Name, err)
	}
	return nil
}

// Kill sends SIGKILL. It does not wait for the end.
func (p *Process) Kill() error { return p.Signal(syscall.SIGKILL) }

// Pause stops the process without ending it (SIGSTOP), until Resume.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused process continue.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// A spawner starts processes from one thread that lives as long as its Net. A child's
// parent-death signal is bound to the thread that created it, and other threads of a Go program
// can end at any time.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

// newSpawner starts the thread.
func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// do runs start on the spawner's thread, in a namespace. The thread returns each time: it may
// be the main thread, whose namespace /proc shows as that of the process.
func (s *spawner) do(ns netns.NsHandle, start func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- visit(ns, start) }
	return <-result
}

// stop ends the thread, and with it processes that it has started and that still run.
func (s *spawner) stop() {
	close(s.jobs)
	<-s.done
}
