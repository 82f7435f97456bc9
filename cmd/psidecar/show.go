package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/page"
)

// newShowCommand returns psidecar show, which serves until it gets a signal. It needs no rights
// beyond reading the files.
func newShowCommand(_ env) *cobra.Command {
	var http, live string
	var names []string
	cmd := &cobra.Command{
		Use:   "show [FILE...]",
		Short: "Open recordings as a page, one beside another or beside a job that runs",
		Long: `Serve the page and the interface of an agent for recordings (psidecar record):
each is a job there, and two of them can be compared. All of what they hold is
read before; more can be opened in the page, or dropped on it. With --live the
jobs of an agent or planner that runs are there too, so that a recording can be
laid beside a job that trains now.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ports := ports{names: names}
			defer ports.close()
			front, err := ports.page(cmd.Context(), "--http", http)
			if err != nil {
				return err
			}
			return showPage(cmd.Context(), front, args, live)
		},
	}
	cmd.Flags().StringVar(&http, "http", "127.0.0.1:9816", "address of the page and the interface")
	cmd.Flags().StringVar(&live, "live", "", "host:port of an agent's or planner's page whose jobs are shown too (127.0.0.1:9810 is this host's agent); empty: recordings alone")
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
