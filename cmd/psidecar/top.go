package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page/draw"
)

// top has the flags of the live view.
type top struct {
	agent, job string
	every      time.Duration
	once       bool
}

// newTopCommand returns psidecar top. In a terminal it runs until a key or a signal ends it;
// otherwise it prints once, so that its output can be piped.
func newTopCommand(e env) *cobra.Command {
	var t top
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch jobs live in the terminal: rates, stalls, servers, workers and hosts",
		Long: `Watch the jobs of an agent or a planner in the terminal: rates, stalls, the last
hour, servers, workers and hosts. Select a job with the arrow keys, scroll with
page up and down, press s to sort, p to pause, ? for the keys and q to quit. If
standard output is not a terminal, print the state once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.every < 100*time.Millisecond {
				return cli.Usagef("--every %v: want 100ms or more", t.every)
			}
			// The view moves the cursor, so it writes past the filter and cleans its text
			// itself.
			out, ok := e.bareOut.(*os.File)
			if t.once || !ok || !term.IsTerminal(int(out.Fd())) {
				return t.printOnce(cmd.Context(), e)
			}
			// Fit cleans errors; the data of a screen are cleaned where they are fetched.
			v := draw.View{Fetch: t.fetch, Job: t.job, Every: t.every, Fit: cli.Clean, Colours: draw.ColoursOf(e.lookup)}
			return v.Run(cmd.Context(), e.stdin, out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&t.agent, "agent", client.AgentURL, "URL of the agent or planner")
	flags.StringVar(&t.job, "job", "", "job to show in detail, by name or scheduler host:port (default: the first running one)")
	flags.DurationVar(&t.every, "every", 2*time.Second, "refresh interval")
	flags.BoolVar(&t.once, "once", false, "print the state once and exit, even on a terminal")
	return cmd
}

// printOnce prints all there is, without colours and not cut to the height of a terminal.
func (t *top) printOnce(ctx context.Context, e env) error {
	s, err := t.fetch(ctx, t.job)
	if err != nil {
		return err
	}
	const wide = 160
	return draw.Top(e.stdout, s, wide, draw.NoColours)
}

// fetch returns what a screen shows, asked from the agent or planner; job is the one of which
// there is more.
func (t *top) fetch(ctx context.Context, job string) (*draw.Screen, error) {
	return client.FetchScreen(ctx, t.agent, job)
}
