package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/prerun"
)

// scoreFlags are the flags of psidecar score.
type scoreFlags struct {
	input, assignment string
	k                 int
	json              bool
}

// newScoreCommand returns psidecar score, whose figures are computed by the same code as those
// of psidecar partition.
func newScoreCommand(e env) *cobra.Command {
	var f scoreFlags
	cmd := &cobra.Command{
		Use:   "score --input FILE --assignment FILE -k MACHINES",
		Short: "Evaluate a partition made by any program",
		Long: `Print the same figures as psidecar partition for an assignment made by any
program: a text file with one machine number per line, starting at 0, first for
each sample of the data, then for each parameter that occurs, in ascending order
of feature ID.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.input, "input", "", "input data, a libsvm or libffm file")
	flags.StringVar(&f.assignment, "assignment", "", "assignment file")
	flags.IntVarP(&f.k, "machines", "k", 0, "number of machines")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// run reads data and assignment and prints the report.
func (f *scoreFlags) run(ctx context.Context, e env) error {
	if f.input == "" || f.assignment == "" {
		return cli.Usagef("--input and --assignment: name both files")
	}
	if f.k < 1 {
		return cli.Usagef("-k %d: want 1 or more machines", f.k)
	}
	r, err := prerun.Score(ctx, prerun.Input{Path: f.input, Progress: cli.NewProgress(e.bareErr, "reading")}, f.assignment, f.k)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(e.stdout).Encode(r)
	}
	return prerun.Table(e.stdout, []*prerun.Report{r})
}
