package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/util/hooks"
	fnpb "github.com/apache/beam/sdks/v2/go/pkg/beam/model/fnexecution_v1"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/runners/universal/extworker"
)

// Serve runs a worker pool until the context ends: for an engine that asks at the port of
// localhost it starts workers in this process. Port 0 is any free one; ready is called once
// with the address when the pool listens. In a pod beside an engine's task manager, the task
// manager asks.
func Serve(ctx context.Context, port int, ready func(address string) error) error {
	pool, err := extworker.StartLoopback(ctx, port)
	if err != nil {
		return fmt.Errorf("starting the worker pool: %w", err)
	}
	if err := ready(pool.EnvironmentConfig(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// noMetrics is the hook's name in Beam's registry.
const noMetrics = "psidecar-beam-no-metrics"

// WithoutMetrics keeps the workers of this process from reporting the engine's metrics to
// Prism. A worker identifies metrics by short numbers of its own, and Prism takes the numbers
// of all workers of a job to mean the same: it fails if there are two. It is called once,
// before workers start.
func WithoutMetrics() error {
	hooks.RegisterHook(noMetrics, func([]string) hooks.Hook {
		return hooks.Hook{Resp: func(_ context.Context, _ *fnpb.InstructionRequest, resp *fnpb.InstructionResponse) error {
			if r := resp.GetProcessBundle(); r != nil {
				r.MonitoringData, r.MonitoringInfos = nil, nil
			}
			if r := resp.GetProcessBundleProgress(); r != nil {
				r.MonitoringData, r.MonitoringInfos = nil, nil
			}
			return nil
		}}
	})
	if err := hooks.EnableHook(noMetrics); err != nil {
		return fmt.Errorf("leaving out metrics: %w", err)
	}
	hooks.SerializeHooksToOptions()
	return nil
}

// A Pool is a process of this host that serves as a worker pool. The caller of StartPool or
// StartSelf owns it and stops it.
type Pool struct {
	Address string // host:port at which it listens
	cmd     *exec.Cmd
	stdin   io.Closer // its end is what ends the process
}

// patience is how long a worker may take to end when it is told to, before it is killed.
const patience = 10 * time.Second

// StartPool starts a process that prints its address on a line of standard output and ends with
// its standard input, as psidecar-beam worker-pool does. It returns when the line has come. The
// process's errors go to log. The end of ctx kills it.
func StartPool(ctx context.Context, log io.Writer, name string, args ...string) (*Pool, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = log
	cmd.WaitDelay = patience
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		// Stop reaps the process, and its error says how it ended.
		p := &Pool{cmd: cmd, stdin: stdin}
		_, endErr := p.Stop()
		return nil, fmt.Errorf("a worker exited before it reported its address: %w", errors.Join(err, endErr))
	}
	return &Pool{Address: strings.TrimSpace(line), cmd: cmd, stdin: stdin}, nil
}

// Stop ends the process and returns the peak of its resident memory in bytes, as the kernel has
// counted it, also with an error. It is called once.
func (p *Pool) Stop() (peak int64, err error) {
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() }) // it may have ended
	defer timer.Stop()
	err = errors.Join(p.stdin.Close(), p.cmd.Wait())
	if usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		// Linux counts in KiB.
		peak = usage.Maxrss << 10
	}
	if err != nil {
		return peak, fmt.Errorf("a worker: %w", err)
	}
	return peak, nil
}

// StartSelf starts the program that is running with other arguments, as StartPool does.
// Pipeline and workers are the same program then, as they must be.
func StartSelf(ctx context.Context, log io.Writer, args ...string) (*Pool, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("looking for this program: %w", err)
	}
	return StartPool(ctx, log, self, args...)
}
