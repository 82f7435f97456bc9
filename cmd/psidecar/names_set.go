package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/cmd/psidecar/plaintext"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/names"
)

func newNamesCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "names",
		Short: "Show what keys are called, and set it while agents and planners run",
		Long: `Show what an agent or planner calls ranges of keys (--names), and set it without
a restart.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNamesShowCommand(e), newNamesSetCommand(e))
	return cmd
}

func newNamesShowCommand(e env) *cobra.Command {
	var agent, job string
	var asCSV, asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show what ranges of keys are called",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if job != "" {
				query.Set("job", job)
			}
			var there page.Names
			if err := ask(cmd.Context(), agent, "/api/v1/names", query, &there); err != nil {
				return err
			}
			switch {
			case asJSON:
				return json.NewEncoder(e.stdout).Encode(there)
			case asCSV:
				return csv.NewWriter(e.stdout).WriteAll(namesTable(there.Names))
			case len(there.Names) == 0:
				fmt.Fprintln(e.stdout, "keys have no names; --names FILE of agent, planner and up, or psidecar names set FILE, gives them some")
				return nil
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
			for _, row := range namesTable(there.Names) {
				for i := range row {
					row[i] = plaintext.Clean(row[i])
				}
				fmt.Fprintln(w, strings.Join(row, "\t"))
			}
			return w.Flush()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&agent, "agent", agentURL, "URL of the agent or planner to ask")
	flags.StringVar(&job, "job", "", "names of this job's keys, by its scheduler's host:port; default: all")
	flags.BoolVar(&asCSV, "csv", false, "print CSV, which --names and psidecar names set read")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// namesTable is names as a file of CSV has them, with the columns' names first.
func namesTable(list []page.NamedKeys) [][]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	rows := [][]string{{"name", "first", "last", "keys-per-row", "row", "job"}}
	for i := range list {
		r := &list[i].Range
		rows = append(rows, []string{r.Name, number(r.First), number(r.Last), number(r.KeysPerRow), number(r.Row), r.Job})
	}
	return rows
}

// usualNamesSockets are where names of keys can be set on a host by default.
var usualNamesSockets = []string{agentNamesSocket, usualControlSocket, plannerNamesSocket}

func newNamesSetCommand(e env) *cobra.Command {
	var sockets []string
	cmd := &cobra.Command{
		Use:   "set FILE",
		Short: "Set what keys are called, in place of all names",
		Long: `Give agent, planner and psidecar up on this host the names of keys that are in a
file, YAML or CSV as --names reads it, in place of all that they have; an empty
file takes the names away. It holds until the file of their own --names changes,
or they end: names that are to stay belong into that file. Other hosts' agents
are not told.

Root, the user that the process runs as and its --admin-uid may; it logs who
did it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("reading names of keys: %w", err)
			}
			if _, err := names.Parse(args[0], text); err != nil {
				return usagef("%s: %w", args[0], err)
			}
			if len(text) > control.MaxBody {
				return usagef("%s: %d bytes, at most %d are taken; --names of agent, planner and up reads larger ones", args[0], len(text), control.MaxBody)
			}
			media := "application/yaml"
			if strings.HasSuffix(strings.ToLower(args[0]), ".csv") {
				media = "text/csv"
			}
			if len(sockets) > 0 {
				return setNames(cmd.Context(), e.stdout, sockets, false, media, text)
			}
			return setNames(cmd.Context(), e.stdout, usualNamesSockets, true, media, text)
		},
	}
	cmd.Flags().StringSliceVar(&sockets, "control-socket", nil, "unix sockets of who is told: --names-socket of agent and planner, --control-socket of up; default: all that are at their usual places, "+strings.Join(usualNamesSockets, ", "))
	return cmd
}

// errNoNames says that at a socket, if there is one, nobody takes names of keys.
var errNoNames = errors.New("nobody takes names of keys there")

// setNames sets names at all sockets; where some may be missing, at one at least.
func setNames(ctx context.Context, out io.Writer, sockets []string, missing bool, media string, text []byte) error {
	told := 0
	var failed []error
	for _, socket := range sockets {
		n, err := setNamesAt(ctx, socket, media, text)
		switch {
		case err == nil:
			told++
			fmt.Fprintf(out, "%s: ranges of keys with names: %d, until the file of --names changes or the process ends\n", socket, n)
		case !missing || !errors.Is(err, errNoNames):
			failed = append(failed, fmt.Errorf("%s: %w", socket, err))
		}
	}
	if told == 0 && len(failed) == 0 {
		return fmt.Errorf("no agent, planner or psidecar up takes names on this host at %s: is one running? --control-socket names another place", strings.Join(sockets, ", "))
	}
	return errors.Join(failed...)
}

// setNamesAt sets names at one socket, and returns how many there are now.
func setNamesAt(ctx context.Context, socket, media string, text []byte) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://control/api/v1/names", bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", media)
	response, err := control.Client(socket).Do(request)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return 0, fmt.Errorf("%w: %w", errNoNames, err)
	case err != nil:
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 256<<20))
	if err != nil {
		return 0, fmt.Errorf("reading the answer: %w", err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		var there page.Names
		err := json.Unmarshal(body, &there)
		return len(there.Names), err
	case http.StatusNotFound, http.StatusMethodNotAllowed: // a proxy's, or an older one's
		return 0, errNoNames
	}
	var refused struct{ Error string }
	if json.Unmarshal(body, &refused) != nil || refused.Error == "" {
		refused.Error = strings.TrimSpace(fmt.Sprintf("%s: %.300s", response.Status, body))
	}
	return 0, errors.New(refused.Error)
}
