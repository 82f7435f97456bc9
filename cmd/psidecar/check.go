package main

import (
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
)

// newCheckCommand returns psidecar check. The order of targets is that of the output, and the
// flags below fill their names.
func newCheckCommand(e env) *cobra.Command {
	targets := []client.CheckTarget{{Part: "agent"}, {Part: "proxy"}, {Part: "planner"}}
	var patience time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether agents, proxies and planners work, at all addresses of a name; exit code 1 where one does not",
		Long: `Asks each part whether every loop of it turns (/healthz) and whether it is ready
(/readyz), and each agent that has a planner whether that takes its reports. An agent
outside of Kubernetes is ready once it has found a job. A name that stands for several
addresses, as a headless Service's does, means all of them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkArguments(targets); err != nil {
				return err
			}
			results := client.CheckUntil(cmd.Context(), targets, patience)
			return client.PrintChecked(e.stdout, results, asJSON)
		},
	}
	cmd.Flags().StringSliceVar(&targets[0].Names, "agents", nil, "HOST:PORT of agents' pages, such as 127.0.0.1:9810")
	cmd.Flags().StringSliceVar(&targets[1].Names, "proxies", nil, "HOST:PORT at which proxies show their state, such as 127.0.0.1:9813")
	cmd.Flags().StringSliceVar(&targets[2].Names, "planners", nil, "HOST:PORT of planners' pages, such as planner-host:9812")
	cmd.Flags().DurationVar(&patience, "patience", 0, "how long to ask again until all is well")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// checkArguments returns a usage error unless at least one address is given and all have a host
// and a port. It resolves no names: one that does not resolve yet is a part that is not well,
// for which --patience waits.
func checkArguments(targets []client.CheckTarget) error {
	// Empty lists are the default, so that one flag is enough. None at all would make a check
	// that always passes.
	given := false
	for _, t := range targets {
		for _, name := range t.Names {
			given = true
			if host, port, err := net.SplitHostPort(name); err != nil || host == "" || port == "" {
				return cli.Usagef("%q: want HOST:PORT, of the part %s", name, t.Part)
			}
		}
	}
	if !given {
		return cli.Usagef("there is nothing to check: give --agents, --proxies or --planners")
	}
	return nil
}
