package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Planner is a planner's process, which is killed and started again.
type Planner struct {
	program []string
	address string
	store   string

	mu     sync.Mutex // guards the rest
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
	log    tail
}

// newPlanner returns one that has not begun, at a port that is free now.
func newPlanner(program []string, store string) (*Planner, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("a port for the planner: %w", err)
	}
	defer l.Close()
	return &Planner{program: program, address: l.Addr().String(), store: store}, nil
}

// start starts the process.
func (p *Planner) start(ctx context.Context) error {
	args := append(slices.Clone(p.program[1:]), "--listen", p.address, "--http", "", "--socket", "", "--insecure", "--act", "--store", p.store)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), p.program[0], args...)
	p.log = tail{}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting the planner: %w", err)
	}
	cmd, exited := p.cmd, make(chan struct{})
	p.exited = exited
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	return nil
}

// kill ends the process as kill -9 does, and waits until it has.
func (p *Planner) kill() {
	p.mu.Lock()
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()
	_ = cmd.Process.Kill() // it may have ended by itself
	<-exited
}

// ended is an error once the process has ended by itself.
func (p *Planner) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		return fmt.Errorf("the planner has exited: %s", p.log.String())
	default:
		return nil
	}
}

// tail keeps the end of what a process says.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-4096):]
	return len(b), nil
}

// String returns it.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// usage is what a process has used.
type usage struct {
	cpu            time.Duration
	resident, peak uint64 // bytes
}

// usage reads what the process has used so far.
func (p *Planner) usage() (u usage, err error) {
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	// The clock of a process, user and system: see clock_getcpuclockid(3).
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return u, fmt.Errorf("the planner's CPU time: %w", err)
	}
	u.cpu = time.Duration(t.Nano())
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, fmt.Errorf("the planner's memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		for name, to := range map[string]*uint64{"VmRSS:": &u.resident, "VmHWM:": &u.peak} {
			if value, ok := strings.CutPrefix(line, name); ok {
				kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
				if err != nil {
					return u, fmt.Errorf("the planner's memory: %w", err)
				}
				*to = kib << 10
			}
		}
	}
	return u, nil
}
