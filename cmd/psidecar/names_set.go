package main

import (
	"encoding/json"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/page"
)

// newNamesCommand returns psidecar names with the verbs below it.
func newNamesCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "names",
		Short: "Show key names, and set them at run time",
		Long: `Show the names of key ranges of an agent or planner (--names), and set them
without a restart.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNamesShowCommand(e), newNamesSetCommand(e))
	return cmd
}

// newNamesShowCommand returns psidecar names show. It asks the page of an agent or planner, so
// it needs no rights.
func newNamesShowCommand(e env) *cobra.Command {
	var agent, job string
	var asCSV, asJSON bool
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
			return client.PrintNames(e.stdout, there.Names, asCSV)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner")
	flags.StringVar(&job, "job", "", "only names for this job, given by its scheduler's host:port (default: all)")
	flags.BoolVar(&asCSV, "csv", false, "print CSV in the format of --names and psidecar names set")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// usualNamesSockets are where names of keys can be set on a host by default: of agent, up and
// planner.
var usualNamesSockets = []string{agentNamesSocket, usualControlSocket, plannerNamesSocket}

// newNamesSetCommand returns psidecar names set. With default sockets it is enough that one of
// them is there; sockets that are named must all take the names. The file is parsed here as
// well, so that a mistake is found before some of the processes have new names and others do
// not.
func newNamesSetCommand(e env) *cobra.Command {
	var sockets []string
	cmd := &cobra.Command{
		Use:   "set FILE",
		Short: "Replace all key names",
		Long: `Replace the key names of agent, planner and psidecar up on this host with those in
a file (YAML or CSV, as for --names). An empty file removes all names. The names
hold until the processes' own --names file changes or they exit; put permanent
names into that file. Agents on other hosts are not changed.

Allowed for root, the user of the process and its --admin-uid. The process logs
who made the change.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			media, text, err := client.ReadNames(args[0])
			if err != nil {
				return err
			}
			if len(sockets) > 0 {
				return client.SetNames(cmd.Context(), e.stdout, sockets, false, media, text)
			}
			return client.SetNames(cmd.Context(), e.stdout, usualNamesSockets, true, media, text)
		},
	}
	cmd.Flags().StringSliceVar(&sockets, "control-socket", nil, "Unix sockets to use: --names-socket of agent and planner, --control-socket of up (default: all default sockets that exist, "+strings.Join(usualNamesSockets, ", ")+")")
	return cmd
}
