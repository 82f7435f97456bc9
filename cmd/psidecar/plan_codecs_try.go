package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/planner/api"
)

// newCodecsTryCommand returns psidecar plan codecs try. It blocks for --seconds and until the
// proxies have reported.
func newCodecsTryCommand(e env) *cobra.Command {
	var f planFlags
	var seconds uint32
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Try codecs on live traffic on all proxies, and show what each would save",
		Long: `Run the traffic of all proxies that follow the planner through each codec, in
addition to the one in use, and show what each would save and the residual that it
would leave. The traffic itself does not change. During the trial, proxies use
several times the CPU time of a codec.`,
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
					return client.PrintProto(e.stdout, d)
				}
				return client.PrintAdvice(e.stdout, d)
			})
		},
	}
	f.addFlags(cmd)
	cmd.Flags().Uint32Var(&seconds, "seconds", 10, "duration of the trial in seconds, 1 to 60")
	return cmd
}
