// The command psidecar-beam partitions training data as psidecar partition does,
// on an engine that Apache Beam knows: Flink, Spark, Dataflow, or its own Prism
// on this host.
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

func main() {
	// An engine that starts workers from a container calls this program with
	// flags of Beam's own, and Init does not return.
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

// quiet leaves only warnings of what Beam and Prism say.
func quiet(verbose bool) {
	level := slog.LevelError
	log.LogLevel = "error"
	if verbose {
		level, log.LogLevel = slog.LevelInfo, "info"
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
}
