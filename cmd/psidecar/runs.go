package main

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
)

// newRunsCommand returns psidecar runs. It asks the page of a planner, as agents remember no
// runs.
func newRunsCommand(e env) *cobra.Command {
	var planner, job string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "Show and compare the runs of jobs: speed and traffic",
		Long: `Show the runs that a planner remembers, by job name: psidecar.io/job, PSIDECAR_JOB,
the owner of the pods, or the scheduler's host:port. Runs with the same name can
be compared. With --store they survive a restart of the planner.`,
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
	cmd.Flags().StringVar(&planner, "planner-http", client.PlannerURL, "URL of the planner's HTTP endpoint")
	cmd.Flags().StringVar(&job, "job", "", "only runs of this job, by name or scheduler host:port (default: all)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
