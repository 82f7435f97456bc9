package main

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
)

// newNamesCommand returns psidecar names with the verb below it.
func newNamesCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "names",
		Short: "Show key names",
		Long:  `Show the names of key ranges of an agent or planner (--names).`,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNamesShowCommand(e))
	return cmd
}

// newNamesShowCommand returns psidecar names show. It asks the page of an agent or planner, so
// it needs no rights.
func newNamesShowCommand(e env) *cobra.Command {
	var agent, job string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the names of key ranges",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if job != "" {
				query.Set("job", job)
			}
			var there page.Names
			if err := client.Get(cmd.Context(), agent, "/api/v1/names", query, &there); err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(there)
			}
			return client.PrintNames(e.stdout, there.Names)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner")
	flags.StringVar(&job, "job", "", "only names for this job, by name or scheduler host:port (default: all)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
