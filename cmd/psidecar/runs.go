package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
)

func newRunsCommand(e env) *cobra.Command {
	var planner, job string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "Show the runs of jobs, and compare how fast they went and what they moved",
		Long: `Show the runs of jobs that a planner remembers, by what the jobs are called: the
name of what owns their pods, psidecar.io/job, PSIDECAR_JOB, or else their
scheduler's host:port. Runs of one name can be compared. With --store they
outlive the planner.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if job != "" {
				query.Set("job", job)
			}
			var runs page.Runs
			if err := client.Get(cmd.Context(), planner, "/api/v1/runs", query, &runs); err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(runs)
			}
			return printRuns(e.stdout, runs)
		},
	}
	cmd.Flags().StringVar(&planner, "planner-http", client.PlannerURL, "URL of the page of the planner to ask")
	cmd.Flags().StringVar(&job, "job", "", "the runs of this job, by its name or its scheduler's host:port; default: of all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printRuns(out io.Writer, runs page.Runs) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(runs.Jobs) == 0 {
		fmt.Fprintln(w, "this planner has seen no job")
	}
	for _, j := range runs.Jobs {
		fmt.Fprintf(w, "job %s\n", cli.Clean(j.Name))
		fmt.Fprintln(w, "began\ttook\trun\tservers\tworkers\tsteps\tsteps/s\tbytes/step\tleft hosts\tscheduler\t")
		for _, r := range j.Runs {
			id, took := r.ID, r.Last.Sub(r.Began).Round(time.Second).String()
			if id == "" {
				id = "-"
			}
			if r.Running {
				took = "runs"
			}
			left := 0.0
			if r.Bytes > 0 {
				left = 100 * float64(r.LeftHostBytes) / float64(r.Bytes)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%.0f\t%.2f\t%.0f\t%.0f%%\t%s\t\n", r.Began.Format("2006-01-02 15:04:05"), took, cli.Clean(id),
				r.Servers, r.Workers, r.Steps, r.StepsPerSecond, r.BytesPerStep, left, cli.Clean(r.Job))
		}
	}
	return w.Flush()
}
