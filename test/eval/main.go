// Command eval repeats what papers measured, with psidecar's code: what a planner's algorithms
// leave of the traffic between machines, what the proxies' codecs save and cost, and what
// follows from both. It is the evidence behind claims in the documentation, and shows whether a
// change made an algorithm worse.
//
// A run consists of parts, each named by --what, each a table or figure or a few of them:
//
//   - The planner's: which traffic each algorithm leaves on random graphs of several densities
//     and shapes (figures 8 and 9 of DWW21) and on data sets (its table 5 and figures 7 and
//     10), hashed ones too (figures 5 to 7 of DW23), and what an edge costs in time and memory
//     from one to a hundred million of them; what strategies for moving keys while a job trains
//     leave (figure 8 of DW23).
//   - The codecs': what models lose under thresholds, Slim-DP and quantization, and where parts
//     of them exchange thresholded activations (tables 1, 3, 4, 6 and 7 and figures 2 and 5 of
//     DCT), and what is saved. Models train in this process, whose messages go through the real
//     codecs ([session]).
//   - By calculation: what a step takes by architecture (tables 1, 3, 4 and 6 and figures 7 to
//     9 of Parallax).
//   - Live, as root: jobs on hosts of their own with slow links, which tests of other packages
//     run ([evaluation.live]).
//
// Input is flags and the folder of data sets; parts whose data are absent are skipped. Tables
// in markdown go to standard output, plots to PNG and SVG files, and with --report all that the
// papers have beside ours to one page (package report). All randomness comes from fixed seeds,
// so that figures other than times are the same in each run. `make eval`, `make
// eval-partition`, `make eval-dynamic` and `make eval-codecs` run it.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/test/eval/report"
)

// An evaluation is what all parts of one run share. Parts run one after the other; a part may
// use goroutines, which write to log only.
type evaluation struct {
	dir         string    // for the plots
	scratch     string    // for what only this run reads; removed at its end
	datasets    string    // folder of the data sets
	quick, full bool      // less and more than usual; not both
	fiveSeeds   bool      // a part needs narrow errors
	out         io.Writer // for the tables
	log         io.Writer // for progress
}

// A part is one of the things that --what names. run writes its tables to the evaluation's out
// and its plots to dir. An error that [evaluation.absence] knows is for data or rights that are
// not there.
type part struct {
	name string
	run  func(context.Context, *evaluation) error
}

// parts returns all parts in the order in which they run.
func parts() []part {
	return []part{{"sweeps", sweeps}, {"table5", table5}, {"degrees", degrees}, {"machines", byMachines}, {"bins", bins}, {"hashed", hashed}, {"scale", scale}, {"dynamic", dynamicPart},
		{"threshold", thresholds}, {"lifespan", lifespans}, {"gradients-time", gradientsOverTime}, {"slim", slims}, {"pulls", pulls},
		{"activations", activations}, {"activations-others", otherSplits}, {"activations-deep", deep}, {"activations-time", overTime}, {"theorem", theorem}, {"transfer", transfers}, {"architectures", parallaxTable4}, {"time", timeToLoss}, {"speed", speed}, {"measures", measures}, {"worth", worthIt}}
}

// main runs the evaluation until it is done or interrupted.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "eval:", err)
		stop()
		os.Exit(1)
	}
}

// run is the command: it parses args, runs the chosen parts and returns the first error. With
// --what all, parts without their data are skipped; a part asked for by name must run.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	e := &evaluation{out: out, log: log}
	flags := flag.NewFlagSet("eval", flag.ContinueOnError)
	flags.SetOutput(log)
	what := flags.String("what", "all", "sweeps, table5, degrees, machines, bins, hashed, scale, dynamic (the planner's), threshold, lifespan, gradients-time, slim, pulls, activations, activations-others, activations-deep, activations-time, theorem, transfer, architectures (the codecs'), time, speed, measures, worth (live, as root) or all; several with commas")
	flags.StringVar(&e.dir, "out", "bin/eval", "directory for the plots")
	flags.StringVar(&e.datasets, "datasets", cmp.Or(os.Getenv("PSIDECAR_DATASETS"), "../shared/datasets"), "folder of the data sets; $PSIDECAR_DATASETS where it is set")
	flags.BoolVar(&e.quick, "quick", false, "smaller graphs, fewer points, steps and seeds, nothing live: some minutes")
	flags.BoolVar(&e.full, "full", false, "sweeps over graphs of the paper's size, scale up to 100 million edges, nets of DLRM's own size for activations: many minutes, some gigabytes")
	whole := flags.Bool("report", false, "keep what each part writes, run only those that have not been run in the same way (--quick, --full or neither), and write index.html and index.md beside the plots")
	again := flags.Bool("again", false, "with --report run all")
	switch err := flags.Parse(args); {
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("argument %q: eval takes flags only", flags.Arg(0))
	}
	chosen, err := choose(*what)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return fmt.Errorf("making the plots' directory: %w", err)
	}
	if e.scratch, err = os.MkdirTemp("", "psidecar-eval-*"); err != nil {
		return fmt.Errorf("making a folder for text that is divided: %w", err)
	}
	defer os.RemoveAll(e.scratch)
	if *whole {
		return e.reported(ctx, chosen, *again)
	}
	for _, p := range chosen {
		began := time.Now()
		if err := p.run(ctx, e); err != nil {
			// Without data most parts still run, which is better than none.
			if reason := e.absence(err); reason != "" && *what == "all" {
				e.progress("%s skipped: %s", p.name, reason)
				continue
			}
			return fmt.Errorf("%s: %w", p.name, err)
		}
		e.progress("%s took %v", p.name, time.Since(began).Round(time.Second))
	}
	return nil
}

// choose returns the parts that --what names, in the order of the names.
func choose(what string) ([]part, error) {
	all := parts()
	if what == "all" {
		return all, nil
	}
	var chosen []part
	for name := range strings.SplitSeq(what, ",") {
		i := slices.IndexFunc(all, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("--what %q: want sweeps, table5, degrees, machines, bins, hashed, scale, dynamic, threshold, lifespan, gradients-time, slim, pulls, activations, activations-others, activations-deep, activations-time, theorem, transfer, architectures, time, speed, measures, worth or all", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// writePlot draws a PNG file in the folder of the plots and adds a line to the tables that says
// where it is. Package report finds the plot by that line.
func (e *evaluation) writePlot(name string, draw func(io.Writer) error) error {
	if err := e.writeFile(name, draw); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "\nPlot: %s\n\n", filepath.Join(e.dir, name))
	return err
}

// writeFile creates or replaces a file in the folder of the plots.
func (e *evaluation) writeFile(name string, draw func(io.Writer) error) error {
	path := filepath.Join(e.dir, name)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("creating a plot: %w", err)
	}
	defer f.Close()
	if err := draw(f); err != nil {
		return err
	}
	// Closed here for its error. The deferred call then does nothing.
	if err := f.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// writePanels draws panels as a PNG file with that name, and beside it as an SVG file.
func (e *evaluation) writePanels(name string, panels []report.Panel) error {
	if err := e.writeFile(strings.TrimSuffix(name, ".png")+".svg", func(w io.Writer) error { return report.WriteSVG(w, panels) }); err != nil {
		return err
	}
	return e.writePlot(name, func(w io.Writer) error { return report.WriteFigure(w, panels) })
}

// progress logs a line for people, who may wait for minutes.
func (e *evaluation) progress(format string, args ...any) {
	fmt.Fprintf(e.log, format+"\n", args...)
}
