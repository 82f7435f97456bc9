package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/cmd/psidecar/plaintext"
)

// env is the outside world as the commands see it, so that a test can run the
// whole command line inside its own process.
type env struct {
	args   []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// bareOut and bareErr are what stdout and stderr write to once what they write
	// cannot work a terminal; for what does, or is no text.
	bareOut, bareErr io.Writer
	lookup           func(name string) (value string, ok bool) // environment variables
	environ          func() []string                           // all of them, NAME=VALUE; nil: they are not looked at

	beginAgain func() // see keepSysmonAwake; nil: not
}

// carries is called first by a command that carries connections.
func (e env) carries() {
	if e.beginAgain != nil {
		e.beginAgain()
	}
}

// usageError marks an error that the user mends by calling differently; it
// ends the process with exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// usagef returns a usageError made as by [fmt.Errorf].
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, e env) int {
	e.bareOut, e.bareErr = e.stdout, e.stderr
	e.stdout, e.stderr = plaintext.NewWriter(e.stdout), plaintext.NewWriter(e.stderr)
	root := newRootCommand(e)
	root.SetArgs(e.args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(e.stderr, "psidecar: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func newRootCommand(e env) *cobra.Command {
	root := &cobra.Command{
		Use:           "psidecar",
		Short:         "A per-host sidecar for parameter-server training that speaks PS-lite",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noCommand,
		Version:       version,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().String("config", "", "YAML file with flag values, keyed by flag name")
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error; logs go to standard error")
	root.PersistentFlags().String("log-format", "text", "text or json: a line or an object for each entry")
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := loadConfig(cmd, e); err != nil {
			return err
		}
		if err := setLogger(cmd, e); err != nil {
			return err
		}
		sayMisspelt(cmd, e)
		return nil
	}
	root.AddCommand(
		newPartitionCommand(e),
		newHashCommand(e),
		newScoreCommand(e),
		newDecodeCommand(e),
		newAgentCommand(e),
		newProxyCommand(e),
		newHeatmapCommand(e),
		newStatusCommand(e),
		newTopCommand(e),
		newShowCommand(e),
		newPlannerCommand(e),
		newPlanCommand(e),
		newNamesCommand(e),
		newRunsCommand(e),
		newRestoreCommand(e),
		newSimulateCommand(e),
		newUpCommand(e),
		newRecordCommand(e),
		newVersionCommand(e),
		newDemoCommand(e),
		newDoctorCommand(e),
		newCheckCommand(e),
		newUnloadCommand(e),
		newCertsCommand(e),
		newDebugCommand(e),
		newManCommand(e),
	)
	addExamples(root)
	addFlagGroups(root)
	addCompletion(root)
	for _, cmd := range root.Commands() {
		markUsageErrors(cmd)
	}
	return root
}

// markUsageErrors makes a wrong number of arguments a usageError, for cmd and
// all below it.
func markUsageErrors(cmd *cobra.Command) {
	if cmd.HasSubCommands() && (cmd.Args == nil || cmd.Args(cmd, []string{"other"}) != nil) {
		cmd.Args = noCommand
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markUsageErrors(sub)
	}
}

func setLogger(cmd *cobra.Command, e env) error {
	name, err := cmd.Flags().GetString("log-level")
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return usagef("--log-level %q: use debug, info, warn or error", name)
	}
	format, err := cmd.Flags().GetString("log-format")
	if err != nil {
		return err
	}
	options := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		slog.SetDefault(slog.New(slog.NewTextHandler(e.stderr, options)))
	case "json":
		slog.SetDefault(slog.New(slog.NewJSONHandler(e.stderr, options)))
	default:
		return usagef("--log-format %q: use text or json", format)
	}
	return nil
}
