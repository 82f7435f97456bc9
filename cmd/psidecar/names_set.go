package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
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
			switch {
			case asJSON:
				return json.NewEncoder(e.stdout).Encode(there)
			case asCSV:
				// With the columns' names even if there are none of keys, so that what comes out
				// can be read in again.
				return csv.NewWriter(e.stdout).WriteAll(namesTable(there.Names))
			case len(there.Names) == 0:
				fmt.Fprintln(e.stdout, "no key names; set them with --names FILE of agent, planner or up, or with psidecar names set FILE")
				return nil
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
			for _, row := range namesTable(there.Names) {
				// Before tabwriter measures them: a tab in a name would make a column of its
				// own.
				for i := range row {
					row[i] = cli.Clean(row[i])
				}
				fmt.Fprintln(w, strings.Join(row, "\t"))
			}
			return w.Flush()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner")
	flags.StringVar(&job, "job", "", "only names for this job, given by its scheduler's host:port (default: all)")
	flags.BoolVar(&asCSV, "csv", false, "print CSV in the format of --names and psidecar names set")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// namesTable returns names as the rows of a CSV file that --names reads, headed by the columns'
// names.
func namesTable(list []page.NamedKeys) [][]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	rows := [][]string{{"name", "first", "last", "keys-per-row", "row", "job"}}
	for i := range list {
		r := &list[i].NamedRange
		rows = append(rows, []string{r.Name, number(r.First), number(r.Last), number(r.KeysPerRow), number(r.Row), r.Job})
	}
	return rows
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
			text, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("reading names of keys: %w", err)
			}
			if _, err := page.ParseNames(args[0], text); err != nil {
				return cli.Usagef("%s: %w", args[0], err)
			}
			// The servers would refuse it as well, but without a hint at what to do.
			if len(text) > control.MaxBody {
				return cli.Usagef("%s: %d bytes, at most %d are taken; --names of agent, planner and up reads larger ones", args[0], len(text), control.MaxBody)
			}
			// The server tells the formats apart by this, as it does not see the file's name.
			media := "application/yaml"
			if strings.HasSuffix(strings.ToLower(args[0]), ".csv") {
				media = "text/csv"
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
