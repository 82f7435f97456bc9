// Command psidecar-beam partitions training data as psidecar partition does, on an engine that
// Apache Beam supports: Flink, Spark, Dataflow, or its own Prism on this host. It is a module
// of its own, so that psidecar does not depend on Beam.
//
// The program plays up to three roles. Started by a user it builds the pipeline (package
// pipeline), runs it and prints the report. As psidecar-beam worker-pool it starts workers for
// an engine that asks; on Prism the first process starts these pools itself (package launch).
// Started by an engine from a container it is a worker. In all of them the functions of the
// pipeline have to be the same, which they are as long as the program is.
//
// Standard output is for the report alone. The exit code is 0 when done and 1 otherwise.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/io/filesystem/gcs"   // gs://
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/io/filesystem/local" // paths
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/io/filesystem/s3"    // s3://
	"github.com/apache/beam/sdks/v2/go/pkg/beam/log"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/dataflow"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/flink"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/spark"
)

// main is the entry of all three roles.
func main() {
	// An engine that starts workers from a container calls this program with flags of Beam's
	// own, which cobra does not know. Init runs the worker then, and does not return.
	if len(os.Args) > 1 && strings.HasPrefix(strings.TrimLeft(os.Args[1], "-"), "worker=") {
		flag.Parse()
		beam.Init()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "psidecar-beam:", err)
		stop()
		os.Exit(1)
	}
}

// quiet leaves only errors of what Beam and Prism log, unless verbose is set. Errors of the
// pipeline's own functions are reported by the command, without Beam's context around them.
func quiet(verbose bool) {
	level := slog.LevelError
	log.LogLevel = "error"
	if verbose {
		level, log.LogLevel = slog.LevelInfo, "info"
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
}
