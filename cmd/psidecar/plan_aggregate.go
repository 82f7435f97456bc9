package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
)

// newPlanAggregateCommand returns psidecar plan aggregate with the verbs below it.
func newPlanAggregateCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "aggregate",
		Short: "Compare ways to synchronize parameters, and sum a host's pushes where that saves bytes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAggregateShowCommand(e), newAggregateApplyCommand(e), newAggregateClearCommand(e))
	return cmd
}

// newAggregateShowCommand returns psidecar plan aggregate show. It changes nothing, and asks a
// page rather than the planner's gRPC interface, since agents have the same figures of their
// own host.
func newAggregateShowCommand(e env) *cobra.Command {
	var at string
	var q client.AlphaQuery
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [RECORDING...]",
		Short: "Show how sparsely a job uses its key ranges, and the traffic of each form",
		Long: `Show alpha, the share of a range's values that a worker uses per step, as counted
by a planner (or by an agent, for its host's workers) or taken from recordings,
and the bytes of values that the busiest machine would send and receive per step
in each form (Parallax, Kim and others 2019, section 3.1):

  servers     each worker pulls and pushes what it uses, as in PS-lite
  host sums   each host does so once (--share-pulls and --aggregate host of psidecar proxy)
  all-reduce  all values in a ring of hosts
  all-gather  each host sends the values used by its workers to all others

A planner takes into account the hosts of workers and servers and their link
speeds, if known: the busiest machine is the one whose link takes the longest.
With --machines, servers are assumed on all machines, with parameters spread
evenly. The workers of a host are assumed to choose keys independently. psidecar
implements the first two forms and chooses one of them per range; the others
would need a different job.`,
		RunE: func(cmd *cobra.Command, recordings []string) error {
			// A page that is asked checks by the same function, but its error would not name the
			// flags.
			on, err := page.ClusterOf(q.Machines, q.Each, q.Speeds)
			if err != nil {
				return cli.Usagef("--machines, --each, --link-speed: %w", err)
			}
			var a page.Alpha
			if len(recordings) > 0 {
				a, err = recordedAlpha(cmd.Context(), recordings, q.Job, q.Blocks, on)
			} else {
				a, err = client.FetchAlpha(cmd.Context(), at, q)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(a)
			}
			return client.PrintAlpha(e.stdout, &a)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&at, "agent", client.PlannerURL, "URL of the planner's or an agent's HTTP endpoint")
	flags.StringVar(&q.Job, "job", "", "job, by name or scheduler host:port; may be omitted if there is only one")
	flags.IntVar(&q.Blocks, "blocks", 64, "number of key blocks to analyze; adjacent blocks with similar use are shown as one range")
	flags.IntVar(&q.Machines, "machines", 0, "compute for this number of machines with workers; 0: the machines of the job")
	flags.IntVar(&q.Each, "each", 1, "with --machines: workers per machine")
	flags.Float64SliceVar(&q.Speeds, "link-speed", nil, "with --machines: link speed of each machine in Mbit/s (default: all equal)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// recordedAlpha returns alpha and what follows from it, in up to blocks ranges of keys, from
// recordings. The computation is that of a planner or agent, [page.AlphaOf].
func recordedAlpha(ctx context.Context, recordings []string, job string, blocks int, on *page.FormCluster) (page.Alpha, error) {
	// Recordings are read as psidecar show reads them, into a state that answers the same
	// queries.
	state, err := agent.OpenRecordings(ctx, version, recordings)
	if err != nil {
		return page.Alpha{}, err
	}
	if jobs := state.Jobs(); job == "" && len(jobs) == 1 {
		job = jobs[0].Name
	} else if job == "" {
		return page.Alpha{}, cli.Usagef("the recordings contain %d jobs: select one with --job", len(jobs))
	}
	return page.AlphaOf(state, job, blocks, on)
}
