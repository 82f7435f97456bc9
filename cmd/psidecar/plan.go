package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/planner/api"
)

// planFlags are the flags of all verbs that ask a planner about a job.
type planFlags struct {
	planner plannerLink // [client.LocalPlanner] by default
	job     string      // scheduler's host:port; empty: the planner takes the only one, or all
	json    bool
}

// addFlags adds the flags.
func (f *planFlags) addFlags(cmd *cobra.Command) {
	f.planner.addFlags(cmd, client.LocalPlanner, "host:port of the planner, or unix:PATH; local: "+client.PlannerSocket+" if it exists, otherwise "+client.PlannerAddress)
	cmd.Flags().StringVar(&f.job, "job", "", "job, by name or scheduler host:port; may be omitted if there is only one")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

// newPlanCommand returns psidecar plan with the verbs below it. Those that change something
// need a certificate with the operator's role or a trusted user's connection; the planner
// checks that.
func newPlanCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show, apply and roll back key placement plans",
		Long: `Show the moves that the planner proposes or has made, with predicted and actual
savings; apply a proposed plan; roll back the newest plan. A planner without
--act only proposes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newPlanShowCommand(e),
		newActCommand(e, "apply", "Apply the latest proposed plan, and later ones if the planner has --act",
			api.ActRequest_APPLY),
		newActCommand(e, "rollback", "Roll back the newest plan that was applied: its keys move back, and no plan is carried out until one is applied",
			api.ActRequest_ROLLBACK),
		newActCommand(e, "forget", "Drop the planner's state of all runs of an ended job; refused while the job is running with displaced keys",
			api.ActRequest_FORGET),
		newPlanCodecsCommand(e),
		newPlanAggregateCommand(e),
	)
	return cmd
}

// newRestoreCommand returns psidecar restore. It is an action like those of psidecar plan, with
// a verb of its own because scripts that save models call it.
func newRestoreCommand(e env) *cobra.Command {
	return newActCommand(e, "restore", "Move all keys of a job home and wait until they are there, for example before a server saves its model", api.ActRequest_RESTORE)
}

// newPlanShowCommand returns psidecar plan show.
func newPlanShowCommand(e env) *cobra.Command {
	var f planFlags
	var namesFile string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the plans of all jobs: predictions, moves, refusals and results",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			called, err := openNames(namesFile)
			if err != nil {
				return err
			}
			return f.planner.CallPlans(cmd.Context(), func(ctx context.Context, c api.PlansClient) error {
				d, err := c.Describe(ctx, &api.DescribeRequest{Job: f.job})
				if err != nil {
					return err
				}
				if f.json {
					return client.PrintProto(e.stdout, d)
				}
				return client.PrintPlans(e.stdout, d, called.Map())
			})
		},
	}
	f.addFlags(cmd)
	addKeyNames(cmd, &namesFile)
	return cmd
}

// newActCommand returns a verb by that name which has the planner do action. The planner only
// begins a plan and answers at once; the proxies carry it out. The answer says how many keys
// have to move. With --wait the command blocks until all have, and fails if some have not by
// then. Restore blocks in any case: what is saved after it must not have a key elsewhere.
func newActCommand(e env, name, short string, action api.ActRequest_Action) *cobra.Command {
	var f planFlags
	var epoch uint64
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.planner.CallPlans(cmd.Context(), func(ctx context.Context, c api.PlansClient) error {
				acted, err := c.Act(ctx, &api.ActRequest{Job: f.job, Action: action, Epoch: epoch})
				if err != nil {
					return err
				}
				// A plan without keys to move is done as soon as it is made, and has nothing to
				// wait for.
				done := acted.GetKeys() == 0
				if wait != 0 {
					if err := client.AwaitEpoch(ctx, c, f.job, acted.GetEpoch(), wait, e.stderr); err != nil {
						return err
					}
					done = true
				}
				switch {
				case f.json:
					return client.PrintProto(e.stdout, acted)
				case action == api.ActRequest_FORGET:
					_, err = fmt.Fprintln(e.stdout, "forgotten")
				case done:
					_, err = fmt.Fprintf(e.stdout, "epoch %d: %d keys, done\n", acted.GetEpoch(), acted.GetKeys())
				default:
					_, err = fmt.Fprintf(e.stdout, "epoch %d: %d keys to move; see psidecar plan show\n", acted.GetEpoch(), acted.GetKeys())
				}
				return err
			})
		},
	}
	f.addFlags(cmd)
	if action == api.ActRequest_APPLY {
		cmd.Flags().Uint64Var(&epoch, "epoch", 0, "epoch of the proposed plan; 0: the newest")
	}
	switch action {
	case api.ActRequest_FORGET:
	case api.ActRequest_RESTORE:
		cmd.Flags().DurationVar(&wait, "wait", -1, "wait up to this long until all keys are at home, and fail if some are not; 0: do not wait; negative: without limit")
	default:
		cmd.Flags().DurationVar(&wait, "wait", 0, "wait up to this long until all keys have moved, and fail if some have not")
	}
	return cmd
}
