package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/filesystem"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/options/jobopts"
	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/cmd/psidecar-beam/launch"
	"github.com/psidecar/psidecar/cmd/psidecar-beam/pipeline"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/partition/blocks"
	"github.com/psidecar/psidecar/planner/prerun"
)

// partitionFlags are the flags of the command.
type partitionFlags struct {
	input, memory string // as given; memory with a unit
	workers       int    // processes, on Prism
	runner        string // as Beam calls it; "prism" is ours
	json, verbose bool
	config        pipeline.Config // what travels to the workers
}

// beamFlags are the flags of Beam that the command takes over. Beam has defined them, and many
// more, in package flag; the others are of no use here.
var beamFlags = []string{
	"endpoint", "environment_type", "environment_config", "job_name", "parallelism", "worker_binary", "async",
	"project", "region", "staging_location", "temp_location", "num_workers", "max_num_workers", "worker_machine_type", "flink_version", "service_account_email",
}

// newRoot returns the command line.
func newRoot() *cobra.Command {
	var f partitionFlags
	cmd := &cobra.Command{
		Use:   "psidecar-beam --input SHARDS -k MACHINES --out FOLDER",
		Short: "Divide training data of any size among machines, on Flink, Spark, Dataflow or this host",
		Long: `Read libsvm or libffm text (plain, .gz, .bz2, .xz, .zst) from local files, gs://
or s3://, twice, and divide its samples and their parameters among k machines, as
psidecar partition does. Write assignment.txt, placement.json, and report.json,
which is also printed.

Without --runner the engine is Prism, in this process, with --workers worker
processes. With --runner flink, spark or dataflow, Beam's own flags give the
address of the engine.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.input, "input", "", "input data: comma-separated files, directories or patterns such as gs://bucket/day-*.gz")
	flags.IntVarP(&f.config.K, "machines", "k", 0, "number of machines")
	flags.StringVar(&f.config.Out, "out", "", "output directory for assignment.txt, placement.json and report.json, on any of these file systems")
	flags.IntVar(&f.config.Passes, "passes", blocks.DefaultPasses, "number of passes over the data after the first assignment pass, in the workers' memory")
	flags.Uint64Var(&f.config.Seed, "seed", 1, "random seed")
	flags.StringVar(&f.memory, "memory", "1GiB", "memory limit of a worker process in bytes (or KiB, MiB, GiB), at least 192MiB")
	flags.StringVar(&f.config.KeyMap, "key-map", "identity", "mapping of feature IDs to PS-lite keys: identity or spread")
	flags.IntSliceVar(&f.config.Servers, "server-ranks", nil, "PS-lite rank of each machine's server: k numbers (default 0,1,...)")
	flags.IntVar(&f.workers, "workers", 2, "with Prism: number of worker processes on this host")
	flags.StringVar(&f.runner, "runner", "prism", "engine: prism, flink, spark, dataflow or universal")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "print the engine's log")
	for _, name := range beamFlags {
		// The command's own flags come first where the names are the same. Which flags there
		// are depends on Beam's version.
		if of := flag.Lookup(name); of != nil && flags.Lookup(name) == nil {
			flags.AddGoFlag(of)
		}
	}
	cmd.AddCommand(newPoolCommand())
	return cmd
}

// newPoolCommand returns psidecar-beam worker-pool, which Prism here and task managers
// elsewhere ask for workers. It prints its address and then runs until it gets a signal, or
// with --until-stdin-ends until whoever started it closes its standard input or dies.
func newPoolCommand() *cobra.Command {
	var port int
	var untilStdinEnds bool
	cmd := &cobra.Command{
		Use:   "worker-pool",
		Short: "Serve a worker pool for an engine with --environment_type=EXTERNAL",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			quiet(false)
			beam.Init()
			if untilStdinEnds {
				// Prism reports what fails itself, once rather than once in each worker.
				slog.SetDefault(slog.New(slog.DiscardHandler))
				if err := launch.WithoutMetrics(); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			if untilStdinEnds {
				go func() {
					_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // its end is what counts
					cancel()
				}()
			}
			return launch.Serve(ctx, port, func(address string) error {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), address)
				return err
			})
		},
	}
	cmd.Flags().IntVar(&port, "port", 50000, "port on localhost; 0: any free port, which is printed")
	cmd.Flags().BoolVar(&untilStdinEnds, "until-stdin-ends", false, "exit at the end of standard input (used with Prism on this host)")
	return cmd
}

// run checks everything that it can before the engine starts, runs the pipeline and prints the
// report that its last step has written. It blocks for as long as the engine takes, unless
// --async asks otherwise.
func (f *partitionFlags) run(ctx context.Context, out io.Writer) error {
	quiet(f.verbose)
	if f.input == "" {
		return errors.New("--input: name libsvm files, or a directory or pattern of them")
	}
	var err error
	if f.config.Memory, err = cli.ParseBytes(f.memory); err != nil {
		return fmt.Errorf("--memory: %w", err)
	}
	// Other engines divide the work by themselves.
	f.config.Lanes = 1
	if f.runner == "prism" {
		f.config.Lanes = f.workers
	}
	if err := f.config.Validate(); err != nil {
		return err
	}
	shards, err := pipeline.Shards(ctx, f.input)
	if err != nil {
		return err
	}
	// Before a pipeline is built, and after the flags are parsed.
	beam.Init()
	p := beam.NewPipeline()
	pipeline.Build(p, f.config, shards)
	start := time.Now()
	if f.runner == "prism" {
		err = f.onPrism(ctx, p)
	} else {
		err = launch.OnEngine(ctx, p, f.runner)
	}
	if err != nil {
		return err
	}
	if *jobopts.Async {
		_, err := fmt.Fprintln(out, "The engine goes on by itself.")
		return err
	}
	return f.report(ctx, out, time.Since(start))
}

// onPrism runs the pipeline with processes of this program as workers, which it starts and
// ends. Memory is per process, and so is what is printed about it.
func (f *partitionFlags) onPrism(ctx context.Context, p *beam.Pipeline) (err error) {
	var addresses []string
	for i := range f.workers {
		pool, startErr := launch.StartSelf(ctx, os.Stderr, "worker-pool", "--port", "0", "--until-stdin-ends")
		// The pools that have started are stopped by the deferred calls.
		if startErr != nil {
			return startErr
		}
		defer func() {
			peak, stopErr := pool.Stop()
			err = errors.Join(err, stopErr)
			if f.verbose || !f.json {
				fmt.Fprintf(os.Stderr, "worker %d had at most %.0f MiB of memory\n", i, float64(peak)/(1<<20))
			}
		}()
		addresses = append(addresses, pool.Address)
	}
	return launch.OnPrism(ctx, p, addresses)
}

// report prints the report that the last step wrote to the output folder: with an engine
// elsewhere there is no other way to get it. took is added here, since no worker knows it.
func (f *partitionFlags) report(ctx context.Context, out io.Writer, took time.Duration) error {
	name := strings.TrimSuffix(f.config.Out, "/") + "/" + pipeline.ReportName
	fs, err := filesystem.New(ctx, name)
	if err != nil {
		return fmt.Errorf("reading the report: %w", err)
	}
	defer fs.Close()
	text, err := filesystem.Read(ctx, fs, name)
	if err != nil {
		return fmt.Errorf("reading the report %s: %w", name, err)
	}
	var r prerun.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("reading the report %s: %w", name, err)
	}
	r.Seconds = took.Seconds()
	if f.json {
		return json.NewEncoder(out).Encode(&r)
	}
	_, err = fmt.Fprintf(out, "%d samples, %d parameters, %d edges on %d machines in %.1f s\nbusiest machine moves %d parameters, all %d, at best %.0f\n",
		r.Samples, r.Parameters, r.Edges, r.K, r.Seconds, r.Traffic.Max, r.Traffic.Total, r.Bound)
	return err
}
