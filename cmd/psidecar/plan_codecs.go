package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// newPlanCodecsCommand returns psidecar plan codecs with the verbs below it.
func newPlanCodecsCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "codecs",
		Short: "Enable, change and disable codecs at run time",
		Long: `Set rules at the planner for the values of a job's pushes and pulls. All proxies
that follow the planner apply them from their next message on. The first of the
planner's rules that matches a key applies, before the proxies' own flags.
Without --act, commands that make changes are dry runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCodecsShowCommand(e), newCodecsSetCommand(e), newCodecsClearCommand(e), newCodecsDrainCommand(e), newCodecsTryCommand(e))
	return cmd
}

// newCodecsShowCommand returns psidecar plan codecs show, which needs no right to change
// anything.
func newCodecsShowCommand(e env) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the rules of all jobs and the proxies that follow them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.planner.CallCodecs(cmd.Context(), func(ctx context.Context, c api.CodecsClient) error {
				// Without a job the planner describes all of them.
				d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: f.job})
				if err != nil {
					return err
				}
				if f.json {
					return client.PrintProto(e.stdout, d)
				}
				return client.PrintCodecs(e.stdout, d)
			})
		},
	}
	f.addFlags(cmd)
	return cmd
}

// newCodecsSetCommand returns psidecar plan codecs set. The codecs' flags are those of the
// proxy; see [daemon.RuleFlags].
func newCodecsSetCommand(e env) *cobra.Command {
	var f codecsChange
	var rule daemon.RuleFlags
	var least int
	var off bool
	var file string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Set the rule for a job's keys, replacing the one for the same keys",
		Long: `Set the rule for a job's keys, replacing the planner's rule for the same keys.
Rules for other keys stay and come after it. --off makes values pass unmodified,
regardless of the proxies' own flags. --file replaces all of the job's rules by a
list in the format of ` + daemon.RulesKey + ` in the proxies' configuration file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			own, err := rule.Own()
			switch {
			case err != nil:
				return err
			// Each of these says all of what is to be set.
			case off && len(own) > 0 || file != "" && (off || len(own) > 0 || f.keys != ""):
				return cli.Usagef("--off, --file and the codecs' flags exclude each other")
			case file != "":
				rules, err := client.ReadRules(file)
				if err != nil {
					return err
				}
				return f.changeRules(cmd.Context(), e, func([]values.Rule) ([]values.Rule, error) { return rules, nil })
			case len(own) == 0 && !off:
				return cli.Usagef("no codec: want --threshold, --slim, --quantize, --unchanged, --pull-threshold, --pull-quantize, --threshold-activations or --wire, or --off")
			case off:
				// A rule without a codec: the first that fits a key counts, so no later one
				// does.
				own = []values.Rule{{}}
			}
			// RuleFlags returns one rule at most, and at least one is there by now.
			own[0].LeastValues = least
			return f.changeRules(cmd.Context(), e, func(before []values.Rule) ([]values.Rule, error) {
				// It checks the rule as a whole, so the number of values is set before.
				if err := f.fill(&own[0]); err != nil {
					return nil, err
				}
				// The new rule comes first. The other way round it could never apply where an
				// older rule for more keys fits.
				return append(own, client.WithoutRule(before, own[0].Keys)...), nil
			})
		},
	}
	f.addFlags(cmd)
	rule.RegisterRule(cmd.Flags())
	cmd.Flags().IntVar(&least, "least-values", 0, "do not apply to keys with fewer values")
	f.setting = true
	cmd.Flags().BoolVar(&f.ahead, "ahead", false, "allow jobs that are not known yet, and planners that no proxy follows yet")
	cmd.Flags().BoolVar(&off, "off", false, "disable codecs for these keys")
	cmd.Flags().StringVar(&file, "file", "", "YAML file with a list of rules")
	return cmd
}

// newCodecsClearCommand returns psidecar plan codecs clear. What waits under the rules that are
// dropped stays with the workers' proxies; drain is the verb that gets it out.
func newCodecsClearCommand(e env) *cobra.Command {
	var f codecsChange
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Remove a job's rules, or those for some keys; the proxies' own flags apply again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.changeRules(cmd.Context(), e, func(before []values.Rule) ([]values.Rule, error) {
				// Without keys all rules of the job go.
				if f.keys == "" {
					return nil, nil
				}
				var r values.Rule
				if err := f.fill(&r); err != nil {
					return nil, err
				}
				return client.WithoutRule(before, r.Keys), nil
			})
		},
	}
	f.addFlags(cmd)
	return cmd
}

// newCodecsDrainCommand returns psidecar plan codecs drain. The rule that it sets has no codec
// but an end, which makes thresholds of the rules that it replaces fall to nothing.
func newCodecsDrainCommand(e env) *cobra.Command {
	var f codecsChange
	var steps int
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Drain a job's residuals with its next pushes, then disable its codecs",
		Long: `Reduce thresholds to zero within --steps pushes of each layer, whichever rule set
them, so that residuals are sent with the workers' own pushes, and then disable
codecs. Use this before workers save a model: with --within the command returns when
nothing is held back on any host. Keys that are not pushed any more keep their
residuals. Without --keys, this applies to all of the job's keys and replaces all of
its rules, for this run: the next run of the job has the rules of before, once agents
report that all processes of this one are gone. psidecar plan codecs clear returns to
the proxies' own flags at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case steps < 1:
				return cli.Usagef("--steps %d: want 1 or more", steps)
			case within > 0 && f.keys != "":
				return cli.Usagef("--within does not go with --keys: what is held back is not counted by key")
			case within > 0 && !f.act:
				return cli.Usagef("--within has no effect: it needs --act")
			}
			err := f.changeRules(cmd.Context(), e, func(before []values.Rule) ([]values.Rule, error) {
				rule := values.Rule{End: steps}
				if err := f.fill(&rule); err != nil {
					return nil, err
				}
				if f.keys == "" {
					// Otherwise rules for some of the keys would remain, and apply again if
					// this one were dropped.
					before = nil
				}
				return append([]values.Rule{rule}, client.WithoutRule(before, rule.Keys)...), nil
			})
			if err != nil || within == 0 {
				return err
			}
			return f.planner.CallCodecs(cmd.Context(), func(ctx context.Context, c api.CodecsClient) error {
				hosts, err := client.AwaitDrained(ctx, c, f.job, within)
				if err == nil && !f.json {
					_, err = fmt.Fprintf(e.stdout, "drained: nothing is held back on %s; a model that is saved now is whole\n", cli.Count(hosts, "host", "hosts"))
				}
				return err
			})
		},
	}
	f.addFlags(cmd)
	f.setting, f.forRun = true, true
	cmd.Flags().DurationVar(&within, "within", 0, "with --act: wait until nothing is held back on any host, for at most this long; exit code 1 if something still is (default: do not wait)")
	cmd.Flags().IntVar(&steps, "steps", 50, "pushes of each layer until no residual is left")
	return cmd
}
