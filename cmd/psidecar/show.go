package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
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
			return showPage(cmd.Context(), front, args, live)
		},
	}
	cmd.Flags().StringVar(&http, "http", "127.0.0.1:9816", "listen address of the page and the API")
	cmd.Flags().StringVar(&live, "live", "", "host:port of an agent or planner whose jobs are shown too (this host's agent is 127.0.0.1:9810); empty: recordings only")
	addNames(cmd, &names)
	return cmd
}

// showPage reads the recordings and serves a page for them until ctx ends, and for the jobs of
// the agent or planner at live, if any. The port is open by then: a browser that asks while
// files are read waits, rather than being refused.
func showPage(ctx context.Context, front page.Server, paths []string, live string) error {
	state, err := agent.OpenRecordings(ctx, version, paths)
	if err != nil {
		return err
	}
	// The page may be sent recordings, which is the one request here that is no GET.
	front.Guard.Opens = true
	if live == "" {
		// Open: recordings can be dropped on the page, within the bound that the state has.
		return front.Serve(ctx, page.Handler(state, page.Options{History: state.History, Open: state.Open}))
	}
	beside := &agent.BesideLive{Recorded: state, Ask: func(path string, query url.Values, v any) error {
		if err := client.Get(ctx, live, path, query, v); err != nil {
			return fmt.Errorf("--live: %w", err)
		}
		return nil
	}}
	// A wrong --live is reported at the start; later failures show on the page.
	if err := beside.Ready(); err != nil {
		return err
	}
	return front.Serve(ctx, page.Handler(beside, page.Options{History: beside.History, Open: state.Open}))
}
