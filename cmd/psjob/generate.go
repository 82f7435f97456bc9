package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/planner/dataset"
)

// newGenerateCommand makes a data set from a seed. The generators are those of the
// planner's evaluation (planner/dataset): the same seed gives the same rows wherever
// it runs, so that a test can name its data by an option instead of a file.
func newGenerateCommand(e env) *cobra.Command {
	var o dataset.TextOptions
	var kind, path string
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate a data set from a seed: texts (libsvm) or clicks (Criteo's log format)",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			// Both kinds share the flags for size and seed; what the others mean
			// depends on the kind.
			clicks := dataset.ClickOptions{Samples: o.Samples, Cardinality: o.Features, Seed: o.Seed}
			// Faults of options are the user's, and found before a file is created.
			check := o.Check()
			switch kind {
			case "text":
			case "clicks":
				check = clicks.Check()
			default:
				return usagef("--kind %q: want text or clicks", kind)
			}
			if check != nil {
				return usageError{check}
			}
			write := func(w io.Writer) (int, error) {
				if kind == "clicks" {
					return dataset.WriteCriteo(w, dataset.SyntheticClicks(clicks))
				}
				return dataset.WriteLibsvm(w, dataset.SyntheticText(o))
			}
			// Only the rows: a line about them would be part of the data.
			if path == "-" {
				_, err := write(e.stdout)
				return err
			}
			n, err := writeFile(path, write)
			if err != nil {
				return fmt.Errorf("writing %s: %w", path, err)
			}
			_, err = fmt.Fprintf(e.stdout, "%s: %d rows\n", path, n)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "text", "kind of data: text or clicks")
	f.StringVar(&path, "out", "-", "output file; -: standard output")
	f.IntVar(&o.Samples, "samples", 10_000, "rows")
	f.IntVar(&o.Features, "features", 20_000, "text: number of distinct words; clicks: number of distinct values of the largest column")
	f.IntVar(&o.Topics, "topics", 20, "text: number of topics")
	f.IntVar(&o.Words, "words", 75, "text: mean number of distinct words per row")
	f.Float64Var(&o.Skew, "skew", 1.05, "text: exponent of the word frequencies")
	f.Float64Var(&o.Noise, "noise", 0.01, "text: fraction of wrong labels")
	f.Uint64Var(&o.Seed, "seed", 1, "random seed; the same seed yields the same rows")
	return cmd
}

// writeFile creates a file and returns how many rows were written. An error of Close
// counts: the last rows may be written by it.
func writeFile(path string, write func(io.Writer) (int, error)) (int, error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	n, err := write(f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	return n, err
}
