package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/logs"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// env is the outside world as the commands see it, so that a test can run the whole command
// line inside its own process. A command uses nothing of package os for what is here.
type env struct {
	// without the program's name
	args   []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// bareOut and bareErr are what stdout and stderr write to once what they write
	// cannot work a terminal; for what does, or is no text.
	bareOut, bareErr io.Writer
	lookup           func(name string) (value string, ok bool) // environment variables
	environ          func() []string                           // all of them, NAME=VALUE; nil: they are not looked at

	beginAgain func() // see [cli.KeepSysmonAwake]; nil: not

	// log is where the logger writes to, and from there to stderr. A daemon makes it buffer
	// once its process is the one that stays. Set by run.
	log *logs.Writer
}

// carries is called first by a command that carries connections. In a real process it may not
// return, but execute the program again; see [cli.KeepSysmonAwake].
func (e env) carries() {
	if e.beginAgain != nil {
		e.beginAgain()
	}
}

// run executes one command line and returns its exit code. It calls os.Exit nowhere, and may be
// called more than once in a process.
func run(ctx context.Context, e env) int {
	// Names of jobs and hosts come from other machines. What they could do to a terminal is
	// filtered out for all commands here.
	e.bareOut, e.bareErr = e.stdout, e.stderr
	e.stdout, e.stderr = cli.NewWriter(e.stdout), cli.NewWriter(e.stderr)
	e.log = logs.New(e.stderr, logs.Size)
	// Deferred, so that the log is complete even if a command panics.
	defer e.log.StopBuffering(logs.FlushWait)
	root := newRootCommand(e)
	root.SetArgs(cli.HelpArgs(e.args))
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	// Errors are printed here and nowhere else; cobra is silenced. They go through the log, to
	// follow what it still has.
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	text := cli.Plainly(err.Error())
	if ctx.Err() != nil && strings.Contains(text, context.Canceled.Error()) {
		text = "interrupted"
	}
	fmt.Fprintf(e.log, "psidecar: %s\n", text)
	var usage cli.UsageError
	// The command line is right where a file is missing that it names, or is a folder.
	if errors.As(err, &usage) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, exec.ErrNotFound) {
		return 2
	}
	return 1
}

// newRootCommand returns the command line with all its verbs. What applies to all of them comes
// after they are added, since it walks over them: examples, groups of flags, completion and
// exit code 2 for wrong arguments.
func newRootCommand(e env) *cobra.Command {
	root := &cobra.Command{
		Use:           "psidecar",
		Short:         "A per-host sidecar for parameter-server training with PS-lite",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cli.NoCommand,
		Version:       version,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().Bool(cli.HelpAll, false, "help with all flags")
	root.PersistentFlags().String("config", "", "YAML file with flag values, keyed by flag name")
	root.PersistentFlags().String("log-level", "info", "log level: debug, info, warn or error; logs go to standard error")
	root.PersistentFlags().String("log-format", "text", "log format: text or json")
	addRemoved(root)
	root.SetFlagErrorFunc(cli.FlagError)
	// Before every verb: flags from the environment and the file of --config first, as they
	// include those of the logger. The variable names are checked last, with a logger to warn
	// by.
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		names := given(cmd)
		if err := cli.LoadFlags(cmd, e.lookup, daemon.RulesKey); err != nil {
			return err
		}
		if err := cli.SetLogger(cmd, e.log); err != nil {
			return err
		}
		if e.environ != nil {
			cli.WarnMisspelt(cmd, e.environ())
		}
		return errors.Join(checkNeeds(cmd, names), checkAddresses(cmd))
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
	flagGroups.Show(root, slices.Contains(e.args, "--"+cli.HelpAll))
	addCompletion(root)
	for _, cmd := range root.Commands() {
		cli.MarkUsageErrors(cmd)
	}
	return root
}
