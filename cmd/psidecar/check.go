package main

import (
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
)

// newCheckCommand returns psidecar check. The order of targets is that of the output, and the
// flags below fill their names.
func newCheckCommand(e env) *cobra.Command {
	targets := []client.CheckTarget{{Part: "agent"}, {Part: "proxy"}, {Part: "planner"}}
	var patience time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the health of agents, proxies and planners; exit code 1 if one is not healthy",
		Long: `Check liveness (/healthz) and readiness (/readyz) of each component, and for each
agent with a planner, whether the planner accepts its reports. Outside of Kubernetes,
an agent is ready once it has found a job. If a name resolves to several addresses,
as with a headless Service, all of them are checked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkArguments(targets); err != nil {
				return err
			}
			results := client.CheckUntil(cmd.Context(), targets, patience)
			return client.PrintChecked(e.stdout, results, asJSON)
		},
	}
	cmd.Flags().StringSliceVar(&targets[0].Names, "agents", nil, "HOST:PORT of the agents' HTTP endpoints, such as 127.0.0.1:9810")
	cmd.Flags().StringSliceVar(&targets[1].Names, "proxies", nil, "HOST:PORT of the proxies' HTTP endpoints, such as 127.0.0.1:9813")
	cmd.Flags().StringSliceVar(&targets[2].Names, "planners", nil, "HOST:PORT of the planners' HTTP endpoints, such as planner-host:9812")
	cmd.Flags().DurationVar(&patience, "patience", 0, "how long to retry until all components are healthy")
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
