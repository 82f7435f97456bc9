package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// env is the outside world as the commands see it, so that a test runs a whole
// command line without a process.
type env struct {
	args    []string
	stdout  io.Writer
	stderr  io.Writer
	lookup  func(name string) (value string, ok bool)
	environ func() []string // for the processes that local starts
}

// usageError marks an error that the user corrects by calling differently: the exit
// code is 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run executes one command line and returns its exit code. It prints the error, since
// cobra's own printing is silenced.
func run(ctx context.Context, e env) int {
	root := newRootCommand(e)
	root.SetArgs(e.args)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(e.stderr, "psjob: %v\n", err)
	var usage usageError
	// A wrong variable is like a wrong flag.
	var environment *van.EnvironmentError
	if errors.As(err, &usage) || errors.As(err, &environment) {
		return 2
	}
	return 1
}

// newRootCommand returns the command tree. Flags are filled from the environment
// before any command runs, and all commands refuse arguments that they do not take.
func newRootCommand(e env) *cobra.Command {
	root := newNodeCommand(e)
	root.Use = "psjob"
	// cobra would print its own text, and the usage after any error of the job.
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = noArguments
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return flagsFromEnvironment(cmd, e) }
	root.AddCommand(newLocalCommand(e), newBenchCommand(e), newGenerateCommand(e))
	return root
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// flagsFromEnvironment fills the flags that the command line leaves out from
// variables: --learning-rate from PSJOB_LEARNING_RATE. In a cluster's manifest
// variables are easier to set for one role than flags.
func flagsFromEnvironment(cmd *cobra.Command, e env) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value, ok := e.lookup(name)
		// The command line comes before the environment. The first wrong variable is
		// reported.
		if !ok || f.Changed || failed != nil {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = usagef("environment variable %s=%q: %w", name, value, err)
		}
	})
	return failed
}

// variableOf returns the name of the variable that sets a flag.
func variableOf(flag string) string {
	return "PSJOB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// nodeFlags are the flags of every node, whatever its role: how long it waits, and
// which generation of PS-lite it speaks.
type nodeFlags struct {
	patience, lost time.Duration
	dialect        string
}

func (w *nodeFlags) register(flags *pflag.FlagSet) {
	flags.DurationVar(&w.patience, "wait", 10*time.Minute, "timeout for any wait")
	flags.DurationVar(&w.lost, "lost-after", time.Minute, "consider a node dead if it has no connection for this long")
	flags.StringVar(&w.dialect, "dialect", pslite.DMLC.String(), "PS-lite generation of all nodes: dmlc, dmlc-2018 or dmlc-2017")
}

// apply checks the flags and puts them into a node's configuration, together with a
// logger to standard error that names the role.
func (w nodeFlags) apply(c *van.Config, e env) error {
	if w.patience <= 0 || w.lost <= 0 {
		return usagef("--wait %v, --lost-after %v: want above 0", w.patience, w.lost)
	}
	// BytePS's dialect is not among them: its nodes also behave differently.
	spoken := []pslite.Dialect{pslite.DMLC, pslite.DMLC2018, pslite.DMLC2017}
	at := slices.IndexFunc(spoken, func(d pslite.Dialect) bool { return d.String() == w.dialect })
	if at < 0 {
		return usagef("--dialect %s: want dmlc, dmlc-2018 or dmlc-2017", w.dialect)
	}
	c.Patience, c.LostAfter, c.Dialect = w.patience, w.lost, spoken[at]
	c.Logger = slog.New(slog.NewTextHandler(e.stderr, nil)).With("role", c.Role.String())
	return nil
}
