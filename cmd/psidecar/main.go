// Command psidecar watches, plans and acts for parameter-server jobs that
// speak PS-lite. One binary holds every part: the agent, the proxy and the
// planner of a host, and the user's tools.
//
// Every verb is one file, named after it, that builds a cobra.Command from an
// [env]; root.go puts them together. Results go to standard output (JSON with
// --json), progress and logs to standard error. The exit code is 0 when done,
// 1 when something failed and 2 when the command was used wrongly.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/psidecar/psidecar/internal/cli"
)

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
