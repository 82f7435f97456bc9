package main

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/page"
)

// newRunsCommand returns psidecar runs. It asks the page of a planner, as agents remember no
// runs.
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
			return client.PrintRuns(e.stdout, runs)
		},
	}
	cmd.Flags().StringVar(&planner, "planner-http", client.PlannerURL, "URL of the page of the planner to ask")
	cmd.Flags().StringVar(&job, "job", "", "the runs of this job, by its name or its scheduler's host:port; default: of all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
