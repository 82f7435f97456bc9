package main

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
)

// newShowCommand returns psidecar show, which serves until it gets a signal. It needs no rights
// beyond reading the files.
func newShowCommand(_ env) *cobra.Command {
	var http, live string
	var names []string
	cmd := &cobra.Command{
		Use:   "show [FILE...]",
		Short: "Serve a web page that shows recordings, and compares them with each other or with a running job",
		Long: `Serve the page and the API of an agent for recordings (psidecar record). Each
recording is shown as a job, and two of them can be compared. Recordings are read
completely at startup; more can be opened in the page or dropped on it. With
--live the page also shows the jobs of a running agent or planner, to compare a
recording with a running job.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports cli.Ports
			defer ports.Close()
			front, err := page.OpenServer(ports.Listener(cmd.Context()), "--http", http, names...)
			if err != nil {
				return err
			}
			var ask func(path string, query url.Values, v any) error
			if live != "" {
				ask = func(path string, query url.Values, v any) error {
					if err := client.Get(cmd.Context(), live, path, query, v); err != nil {
						return fmt.Errorf("--live: %w", err)
					}
					return nil
				}
			}
			return agent.ServeRecordings(cmd.Context(), front, version, args, ask)
		},
	}
	cmd.Flags().StringVar(&http, "http", "127.0.0.1:9816", "listen address of the page and the API")
	cmd.Flags().StringVar(&live, "live", "", "host:port of an agent or planner whose jobs are shown too (this host's agent is 127.0.0.1:9810); empty: recordings only")
	addNames(cmd, &names)
	return cmd
}
