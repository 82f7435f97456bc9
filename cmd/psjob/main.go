// Command psjob is a training job that speaks PS-lite: its schedulers, servers and
// workers are configured by the DMLC_* environment like any others and mix with
// PS-lite's own in one job. It trains small models on real or generated data, counts
// with sums that are known, and measures. Its nodes know nothing of psidecar: it is
// the job that psidecar is tested and shown with.
//
// `psjob` is one node, whose role DMLC_ROLE gives. `psjob local` starts a whole job
// on this machine, `psjob bench` measures one, `psjob generate` makes a data set.
// Results go to standard output, logs to standard error. The exit code is 0 when done,
// 1 when something failed and 2 for a wrong flag or environment variable.
//
// The parts, from the wire upward: van (nodes, connections, barriers), kv (pushes and
// pulls, servers' stores), model (what is trained), train (what workers and servers
// do), and the commands in this package.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// main puts the process's surroundings together. SIGINT and SIGTERM end the context,
// by which a node leaves its job.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, env{
		args:    os.Args[1:],
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		lookup:  os.LookupEnv,
		environ: os.Environ,
	})
	stop()
	os.Exit(code)
}
