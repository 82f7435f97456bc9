package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"
)

// local is a whole job of processes on this machine: a scheduler, servers and
// workers, each a psjob of its own, so that agents and proxies see what they see of a
// real job. All processes end before runAll returns.
type local struct {
	servers, workers int
	host             string
	report, access   string // files of the workers, to be numbered; empty: none
}

// newLocalCommand is `psjob local`. It takes all flags of a node and passes on those
// that were set; the nodes check them again, but a fault is better reported once and
// before anything starts.
func newLocalCommand(e env) *cobra.Command {
	var l local
	var options train.Options
	var out output
	var w nodeFlags
	cmd := &cobra.Command{
		Use:   "local",
		Short: "Start a scheduler, servers and workers as processes on this machine",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.check(); err != nil {
				return err
			}
			if err := options.Check(); err != nil {
				return usageError{err}
			}
			l.report, l.access = out.file, options.AccessLog
			return l.runAll(cmd.Context(), e, passedOn(cmd.Flags()))
		},
	}
	l.register(cmd.Flags(), 2)
	registerOptions(cmd.Flags(), &options)
	out.register(cmd.Flags())
	w.register(cmd.Flags())
	return cmd
}

// newBenchCommand is `psjob bench`: a job of the model bench, with only those flags
// that mean something to it, and one server and worker unless more are asked for.
func newBenchCommand(e env) *cobra.Command {
	var l local
	var options train.Options
	var out output
	var w nodeFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the push and pull rate of scalar keys between processes on this machine",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.Model = "bench"
			if err := l.check(); err != nil {
				return err
			}
			if err := options.Check(); err != nil {
				return usageError{err}
			}
			l.report = out.file
			return l.runAll(cmd.Context(), e, append(passedOn(cmd.Flags()), "--model=bench"))
		},
	}
	l.register(cmd.Flags(), 1)
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	registerOptions(all, &options)
	for _, name := range []string{"keys", "rounds"} {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	out.register(cmd.Flags())
	w.register(cmd.Flags())
	return cmd
}

// register adds the flags of the job as a whole. nodes is the default number of servers, and of
// workers.
func (l *local) register(f *pflag.FlagSet, nodes int) {
	f.IntVar(&l.servers, "servers", nodes, "number of servers")
	f.IntVar(&l.workers, "workers", nodes, "number of workers")
	f.StringVar(&l.host, "host", "127.0.0.1", "address of all nodes, such as ::1 for IPv6")
}

// check returns the first fault of the flags of the job as a whole.
func (l *local) check() error {
	if l.servers < 1 || l.workers < 1 {
		return usagef("--servers %d, --workers %d: want 1 or more", l.servers, l.workers)
	}
	return nil
}

// notPassedOn are the flags that nodes do not get: those of the job as a whole, and files
// that need a number for each worker.
var notPassedOn = []string{"servers", "workers", "host", "report", "access-log"}

// passedOn returns the flags that are passed on to the nodes: those that were set, by
// the command line or by the environment.
func passedOn(flags *pflag.FlagSet) []string {
	var args []string
	flags.Visit(func(f *pflag.Flag) {
		if slices.Contains(notPassedOn, f.Name) {
			return
		}
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok { // whose String has brackets
			value = strings.Join(list.GetSlice(), ",")
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

// environOf returns a node's environment: this process's, without what would set the
// flags that nodes do not get.
func environOf(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.ContainsFunc(notPassedOn, func(flag string) bool { return variableOf(flag) == name })
	})
}

// runAll starts the processes and waits for all of them. When one fails the others
// get SIGTERM, and SIGKILL if they have not ended five seconds later. The error names
// the node that failed first.
func (l local) runAll(ctx context.Context, e env, args []string) error {
	port, err := hosts.FreePort(strings.Trim(l.host, "[]"))
	if err != nil {
		return fmt.Errorf("finding a port on %s: %w", l.host, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding psjob's own program: %w", err)
	}
	// Clipped, since each process appends its role: they must not write to the same
	// array.
	shared := slices.Clip(append(environOf(e.environ()), "DMLC_PS_ROOT_URI="+l.host, "DMLC_PS_ROOT_PORT="+strconv.Itoa(port), "DMLC_NODE_HOST="+l.host,
		"DMLC_NUM_SERVER="+strconv.Itoa(l.servers), "DMLC_NUM_WORKER="+strconv.Itoa(l.workers)))
	stdout, stderr := &lines{w: e.stdout}, &lines{w: e.stderr}
	group, ctx := errgroup.WithContext(ctx)
	start := func(role string, number int, more ...string) {
		group.Go(func() error {
			node := exec.CommandContext(ctx, self, slices.Concat(args, more)...)
			node.Env = append(shared, "DMLC_ROLE="+role)
			out, errs := stdout.writer(), stderr.writer()
			node.Stdout, node.Stderr = out, errs
			// SIGTERM rather than the default SIGKILL: nodes then leave their job in
			// order.
			node.Cancel = func() error { return node.Process.Signal(syscall.SIGTERM) }
			node.WaitDelay = 5 * time.Second
			err := node.Run()
			// A last line without an end is still printed.
			out.end()
			errs.end()
			if err != nil {
				return fmt.Errorf("%s %d: %w", role, number, err)
			}
			return nil
		})
	}
	// In any order: nodes try again until the scheduler listens.
	start("scheduler", 0)
	for i := range l.servers {
		start("server", i)
	}
	for i := range l.workers {
		// Workers write files: each gets one of its own.
		var more []string
		if l.report != "" {
			more = append(more, "--report="+numbered(l.report, i))
		}
		if l.access != "" {
			more = append(more, "--access-log="+numbered(l.access, i))
		}
		start("worker", i, more...)
	}
	return group.Wait()
}

// numbered puts a process's number before a file's suffix: a.json -> a.1.json. A dot
// in a folder's name is none.
func numbered(path string, i int) string {
	at := strings.LastIndexByte(path, '.')
	if at <= strings.LastIndexByte(path, '/') {
		at = len(path)
	}
	return fmt.Sprintf("%s.%d%s", path[:at], i, path[at:])
}

// lines joins the output of several processes line by line, so that no line of one is
// cut by another's.
type lines struct {
	mu sync.Mutex // held while a line is written to w
	w  io.Writer
}

// lineWriter is one process's output. rest is the beginning of a line whose end has
// not come. Only the goroutine that copies the process's output uses it, except for
// end, which is called after that has ended.
type lineWriter struct {
	to   *lines
	rest []byte
}

func (l *lines) writer() *lineWriter { return &lineWriter{to: l} }

// Write keeps what has no end of line yet, and never fails: a job must not end
// because its output was closed.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	// Whole lines are written together. What follows the last end of line waits for
	// its own.
	if end := bytes.LastIndexByte(l.rest, '\n') + 1; end > 0 {
		l.flush(end)
	}
	return len(p), nil
}

func (l *lineWriter) end() { l.flush(len(l.rest)) }

// flush writes the first end bytes of rest, which are whole lines except at the end
// of the process. Errors of w are ignored, see Write. The array of rest is reused.
func (l *lineWriter) flush(end int) {
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	_, _ = l.to.w.Write(l.rest[:end])
	l.rest = append(l.rest[:0], l.rest[end:]...)
}
