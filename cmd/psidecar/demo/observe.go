package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/agent/web"
)

// agent is `psidecar agent` at work. The demo's hosts share one kernel, so one
// agent watches them all, by the cgroup that they lie in.
type agent struct {
	url    string
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan error
}

const (
	agentStart = 20 * time.Second // until it is ready
	agentStop  = 10 * time.Second // from SIGTERM to its end
)

// observe runs the job with an agent beside it.
func (s *stage) observe(ctx context.Context) (Result, error) {
	a, err := startAgent(ctx, s.options.Psidecar, s.net.Cgroup())
	if err != nil {
		return Result{}, err
	}
	s.agent = a
	result, err := s.run(ctx, "observe")
	if err != nil {
		return Result{}, err
	}
	result.ObservedByAgent, err = a.accesses(ctx, result.Accesses)
	return result, err
}

// accesses returns how many accesses of keys the agent counted. The agent
// reads what the kernel copied a little later than it happened: as long as its
// count is below want and still grows, it is given time.
func (a *agent) accesses(ctx context.Context, want uint64) (uint64, error) {
	const patience = 2 * time.Second
	var counted uint64
	for still := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var jobs web.Jobs
		if err := a.get(ctx, "/api/v1/jobs", &jobs); err != nil {
			return 0, err
		}
		var now uint64
		for _, j := range jobs.Jobs {
			now += j.Accesses
		}
		if now > counted {
			counted, still = now, time.Now()
		}
		if counted >= want || time.Since(still) > patience {
			return counted, nil
		}
	}
}

// startAgent starts an agent and waits until it watches.
func startAgent(ctx context.Context, program, cgroup string) (*agent, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("finding a port for the agent: %w", err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, fmt.Errorf("finding a port for the agent: %w", err)
	}
	a := &agent{url: "http://" + address, ended: make(chan error, 1)}
	a.cmd = exec.Command(program, "agent", "--cgroup", cgroup, "--http", address, "--sample", "1")
	a.cmd.Stderr = &a.stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the agent: %w", err)
	}
	go func() { a.ended <- a.cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, agentStart)
	defer cancel()
	for {
		err := a.get(ctx, "/readyz", nil)
		if err == nil {
			return a, nil
		}
		select {
		case end := <-a.ended:
			return nil, fmt.Errorf("the agent ended: %w\n%s", end, a.stderr.Bytes())
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("the agent does not get ready: %w", err), a.stop())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// get asks the agent, and decodes its answer into v where that is not nil.
func (a *agent) get(ctx context.Context, path string, v any) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking the agent: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking the agent for %s: %s", path, response.Status)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(v)
}

// stop ends the agent in order, or by force where that takes too long.
func (a *agent) stop() error {
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the agent: %w", err)
	}
	select {
	case err := <-a.ended:
		if err != nil {
			return fmt.Errorf("the agent ended: %w\n%s", err, a.stderr.Bytes())
		}
		return nil
	case <-time.After(agentStop):
		return errors.Join(errors.New("the agent did not end on SIGTERM"), a.cmd.Process.Kill())
	}
}
