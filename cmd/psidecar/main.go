// Command psidecar watches, plans and acts for parameter-server jobs that speak PS-lite. One
// binary holds every part: the agent, the proxy and the planner of a host, and the user's
// tools. The work itself is done by other packages (agent, proxy, planner and their daemon
// packages, client, page); here are the command lines: verbs, flags, and what connects parts.
//
// Every verb is one file, named after it, with a function newXCommand that builds a
// cobra.Command from an [env]; root.go puts them together. Verbs that run a part have a struct
// of flags each, since psidecar up has the flags of several parts in one command. A part is run
// in the same way everywhere: flags are checked, then all listeners are opened ([cli.Ports]),
// then everything starts in one errgroup, in which the first error ends the rest.
//
// Results go to standard output (JSON with --json), progress and logs to standard error. The
// exit code is 0 when done, 1 when something failed and 2 when the command was used wrongly,
// which an error says by being a [cli.UsageError].
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/psidecar/psidecar/internal/cli"
)

// main runs the command line of the process. SIGINT and SIGTERM end the command's context,
// which is how daemons end in order and tools are interrupted.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, env{
		args:   os.Args[1:],
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		lookup: os.LookupEnv,

		environ:    os.Environ,
		beginAgain: cli.KeepSysmonAwake,
	})
	// Called here, since os.Exit runs no deferred calls.
	stop()
	os.Exit(code)
}
