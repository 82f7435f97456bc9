package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/fleet"
)

func newCodecsTryCommand(e env) *cobra.Command {
	var f planFlags
	var seconds uint32
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Have all proxies try codecs on live traffic, and show what each would save",
		Long: `Have all proxies that follow the planner put what their hosts' processes send
through each codec, beside what is in use, and show what each would save and how
much of the gradients would wait. It changes nothing; for so many seconds it takes
the proxies' processors several times what codecs take.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if seconds < 1 || seconds > 60 {
				return cli.Usagef("--seconds %d: want 1 to 60", seconds)
			}
			return f.planner.CallCodecs(cmd.Context(), func(ctx context.Context, c api.CodecsClient) error {
				trial, err := c.Try(ctx, &api.TryCodecs{Seconds: seconds})
				if err != nil {
					return err
				}
				d, err := client.AwaitTrial(ctx, c, f.job, trial)
				switch {
				case err != nil:
					return err
				case f.json:
					return printProto(e.stdout, d)
				}
				return printAdvice(e.stdout, d)
			})
		},
	}
	f.addFlags(cmd)
	cmd.Flags().Uint32Var(&seconds, "seconds", 10, "for how long, 1 to 60")
	return cmd
}

func printAdvice(out io.Writer, d *api.CodecsDescription) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, h := range d.GetFollowers() {
		switch {
		case h.GetUntried() != "":
			fmt.Fprintf(w, "%s could not try: %s\n", h.GetHost(), h.GetUntried())
		case h.GetFollowing() && h.GetTrial() < d.GetTrial().GetNumber():
			fmt.Fprintf(w, "%s has not reported\n", h.GetHost())
		}
	}
	if len(d.GetAdvice()) == 0 {
		fmt.Fprintln(w, "nothing passed the proxies during the trial")
	}
	for _, a := range d.GetAdvice() {
		c := fleet.Codecs(a.GetJob(), d).Advice
		fmt.Fprintf(w, "job %s: %v s on %d hosts, %d bytes of pushes (%d), %d of pulls\n", a.GetJob(), c.Seconds, c.Hosts, c.PushBytes, c.Pushes, c.PullBytes)
		fmt.Fprintln(w, "codec\tpushes to\tpulls to\tsaved\tgradient that waits, in steps")
		for _, row := range c.Codecs {
			fmt.Fprintf(w, "%s\t%.2f%%\t%.2f%%\t%.1f%%\t%.2f\n", row.Codec, 100*float64(row.PushBytes)/float64(max(1, c.PushBytes)),
				100*float64(row.PullBytes)/float64(max(1, c.PullBytes)), 100*row.Saved, row.Waits)
		}
	}
	return w.Flush()
}
