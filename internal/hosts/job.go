// This file runs a PS-lite job for a test or psidecar demo: a scheduler, servers and workers of
// any programs that take their role from DMLC_* variables (psjob, the C++ peer, PS-lite's own),
// in any mixture, on the hosts of a Net or on loopback. [Job.Start] starts a [Job]; the
// [Running] job has what every process printed and how it ended.

package hosts

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// Program is a command line: path and arguments.
type Program []string

// A Job says what runs and where.
type Job struct {
	Scheduler Program
	Servers   []Program
	Workers   []Program
	// Hosts get the nodes in turn: server i and worker i run on host i modulo their number, the
	// scheduler on the first, each in the cgroup Group of its host. Without hosts everything
	// runs on loopback.
	Hosts []*Host
	// WorkerHosts, if set, get the workers instead.
	WorkerHosts []*Host
	// Apart, if set, gets the scheduler instead.
	Apart *Host
	// IPv6 gives the nodes the hosts' IPv6 addresses, or ::1.
	IPv6 bool
	// Port is the scheduler's on Hosts; 0 means 9091.
	Port int
	// Group is the cgroup of each host in which the nodes run; empty: job.
	Group string
	// Log, if set, returns a writer that also gets a node's standard error as it comes.
	Log func(role string, index int) io.Writer
	// Env is added to the environment of every process, after the DMLC_* variables.
	Env []string
}

// Repeat returns a program n times.
func Repeat(n int, p Program) []Program {
	all := make([]Program, n)
	for i := range all {
		all[i] = p
	}
	return all
}

// A Node is one process of a running job.
type Node struct {
	Role    string // scheduler, server or worker
	Index   int    // among those of its role, as the job lists them; not the rank
	Host    *Host
	Process *Process // nil on loopback
	Cmd     *exec.Cmd

	// Stdout and Stderr are complete when Running.Wait has returned.
	Stdout, Stderr Log
	// Err is how it ended, usually an *exec.ExitError; set by Running.Wait.
	Err error
}

// A Running is a job that was started.
type Running struct {
	Scheduler *Node
	Servers   []*Node
	Workers   []*Node

	ctx    context.Context
	cancel context.CancelCauseFunc // the first cause is why the job ended early
}

// Nodes returns all nodes: the scheduler, the servers, the workers.
func (r *Running) Nodes() []*Node {
	all := append([]*Node{r.Scheduler}, r.Servers...)
	return append(all, r.Workers...)
}

// Run starts the job and waits for its end.
func (j Job) Run(ctx context.Context) (*Running, error) {
	r, err := j.Start(ctx)
	if err != nil {
		return nil, err
	}
	return r, r.Wait()
}

// Start starts all processes of the job. They are killed when ctx ends. Wait must be called. If
// one cannot be started, the others are killed.
func (j Job) Start(ctx context.Context) (*Running, error) {
	environment, err := j.environment()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Running{ctx: ctx, cancel: cancel}
	start := func(role string, i int, p Program) (*Node, error) {
		n := &Node{Role: role, Index: i}
		if len(j.Hosts) > 0 {
			n.Host = j.Hosts[i%len(j.Hosts)]
		}
		if role == "worker" && len(j.WorkerHosts) > 0 {
			n.Host = j.WorkerHosts[i%len(j.WorkerHosts)]
		}
		if role == "scheduler" && j.Apart != nil {
			n.Host = j.Apart
		}
		n.Cmd = exec.CommandContext(ctx, p[0], p[1:]...)
		n.Cmd.Stdout, n.Cmd.Stderr = &n.Stdout, &n.Stderr
		if j.Log != nil {
			n.Cmd.Stderr = io.MultiWriter(&n.Stderr, j.Log(role, i))
		}
		n.Cmd.Env = append(os.Environ(), environment...)
		n.Cmd.Env = append(n.Cmd.Env, "DMLC_ROLE="+role, "DMLC_NODE_HOST="+j.address(n.Host))
		// Of two values for a variable the last counts, so the job's own come last.
		n.Cmd.Env = append(n.Cmd.Env, j.Env...)
		var err error
		if n.Host == nil {
			err = n.Cmd.Start()
		} else {
			n.Process, err = n.Host.StartIn(cmp.Or(j.Group, "job"), n.Cmd)
		}
		if err != nil {
			return nil, fmt.Errorf("starting %s %d: %w", role, i, err)
		}
		return n, nil
	}
	err = func() (err error) {
		if r.Scheduler, err = start("scheduler", 0, j.Scheduler); err != nil {
			return err
		}
		for i, p := range j.Servers {
			n, err := start("server", i, p)
			if err != nil {
				return err
			}
			r.Servers = append(r.Servers, n)
		}
		for i, p := range j.Workers {
			n, err := start("worker", i, p)
			if err != nil {
				return err
			}
			r.Workers = append(r.Workers, n)
		}
		return nil
	}()
	if err != nil {
		cancel(err)
		if r.Scheduler != nil {
			r.Wait() // they have been killed; err says why
		}
		return nil, err
	}
	return r, nil
}

// environment returns the variables that all nodes share. On loopback it picks a free port for
// the scheduler; another process that listens may take it before the scheduler does.
func (j Job) environment() ([]string, error) {
	port := j.Port
	if port == 0 {
		port = 9091
	}
	var scheduler *Host
	if len(j.Hosts) > 0 {
		scheduler = cmp.Or(j.Apart, j.Hosts[0])
	} else {
		var err error
		if port, err = FreePort(j.address(nil)); err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
	}
	return []string{
		"DMLC_NUM_SERVER=" + strconv.Itoa(len(j.Servers)),
		"DMLC_NUM_WORKER=" + strconv.Itoa(len(j.Workers)),
		"DMLC_PS_ROOT_URI=" + j.address(scheduler),
		"DMLC_PS_ROOT_PORT=" + strconv.Itoa(port),
	}, nil
}

// The ports that FreePort chooses from are below those that the kernel gives to connections
// (ip_local_port_range): one of these may be in use again before the scheduler listens.
const firstPort, lastPort = 20_000, 32_767

// FreePort returns a port of an address on which nobody listens. That another process takes it
// before the caller does is unlikely.
func FreePort(address string) (port int, err error) {
	for range 100 {
		port = firstPort + rand.IntN(lastPort-firstPort+1)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// address returns the address of a host in the job's address family, or loopback without a
// host.
func (j Job) address(h *Host) string {
	switch {
	case h == nil && j.IPv6:
		return "::1"
	case h == nil:
		return "127.0.0.1"
	case j.IPv6:
		return h.IPv6.String()
	}
	return h.IPv4.String()
}

// Wait waits until every process has ended. When one fails, the others are killed, since they
// would wait for it for ever. The error is the first failure with that process's output.
func (r *Running) Wait() error {
	defer r.cancel(nil)
	var g errgroup.Group
	for _, n := range r.Nodes() {
		g.Go(func() error {
			if n.Err = n.wait(); n.Err != nil {
				r.cancel(fmt.Errorf("%s %d (%s): %w\n%s", n.Role, n.Index, filepath.Base(n.Cmd.Path), n.Err, n.Stderr.Bytes()))
			}
			return n.Err
		})
	}
	if g.Wait() == nil {
		return nil
	}
	// The other nodes have failed as well, killed as a consequence; the cause is the first.
	return context.Cause(r.ctx)
}

// Signal sends a signal to the node's process, such as SIGKILL, SIGSTOP or SIGCONT. A node that
// dies of it counts as failed in Running.Wait.
func (n *Node) Signal(sig os.Signal) error {
	if err := n.Cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to %s %d: %w", sig, n.Role, n.Index, err)
	}
	return nil
}

// wait waits for the node's process, wherever it runs.
func (n *Node) wait() error {
	if n.Process == nil {
		return n.Cmd.Wait()
	}
	return n.Process.Wait(context.Background()) // its command is killed with the job's context
}
