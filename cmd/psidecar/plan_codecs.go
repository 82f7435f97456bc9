package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// newPlanCodecsCommand returns psidecar plan codecs with the verbs below it.
func newPlanCodecsCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "codecs",
		Short: "Turn codecs for values on, change them and turn them off while a job runs",
		Long: `Give the planner rules for the values of a job's pushes and pulls, which all
proxies that follow it take up with their next message: from the planner's
rules the first that fits a key counts, before what proxies' own flags say.
Without --act the verbs that change something only say what they would do.`,
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
				d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: f.job})
				if err != nil {
					return err
				}
				if f.json {
					return printProto(e.stdout, d)
				}
				return printCodecs(e.stdout, d)
			})
		},
	}
	f.addFlags(cmd)
	return cmd
}

// printCodecs prints all rules that a planner has, and for each proxy that follows whether it
// has them.
func printCodecs(out io.Writer, d *api.CodecsDescription) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(d.GetRules().GetJobs()) == 0 {
		fmt.Fprintln(w, "no rules; what proxies' own flags say holds")
	}
	for _, j := range d.GetRules().GetJobs() {
		fmt.Fprintf(w, "job %s: %s\n", j.GetJob(), j.GetRules())
	}
	for _, j := range d.GetRules().GetSums() {
		fmt.Fprintf(w, "job %s, sums of a host's pushes: %s\n", j.GetJob(), j.GetRules())
	}
	if len(d.GetFollowers()) == 0 {
		fmt.Fprintln(w, "no proxy follows")
	}
	for _, h := range d.GetFollowers() {
		fmt.Fprintf(w, "%s\t%s\n", h.GetHost(), client.FollowerState(h, d.GetRules().GetVersion()))
	}
	return w.Flush()
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
		Short: "Set the rule for a job's keys, in place of the one for the same keys",
		Long: `Set the rule for a job's keys, in place of the one that the planner has for the
same keys; rules for other keys stay, and come after it. --off makes values go
as they are, whatever proxies' own flags say. --file replaces all of the job's
rules by a list as ` + daemon.RulesKey + ` of proxies' configuration file has it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			own, err := rule.Own()
			switch {
			case err != nil:
				return err
			case f.job == "":
				return cli.Usagef("--job: want the job's scheduler, host:port")
			// Each of these says all of what is to be set.
			case off && len(own) > 0 || file != "" && (off || len(own) > 0 || f.keys != ""):
				return cli.Usagef("--off, --file and the codecs' flags exclude each other")
			case file != "":
				rules, err := rulesOf(file)
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
			own[0].LeastValues = least
			return f.changeRules(cmd.Context(), e, func(before []values.Rule) ([]values.Rule, error) {
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
	cmd.Flags().IntVar(&least, "least-values", 0, "leave alone keys that have fewer values")
	f.setting = true
	cmd.Flags().BoolVar(&f.ahead, "ahead", false, "also for a job that nobody knows yet, and where no proxy follows the planner yet")
	cmd.Flags().BoolVar(&off, "off", false, "no codec for these keys")
	cmd.Flags().StringVar(&file, "file", "", "YAML file with a list of rules")
	return cmd
}

// rulesOf reads a YAML file with a list of rules. A file with a fault is a usage error.
func rulesOf(path string) ([]values.Rule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading --file: %w", err)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, cli.Usagef("--file %s: %w", path, err)
	}
	rules, err := values.ReadYAML(&node)
	if err != nil {
		return nil, cli.Usagef("--file %s: %w", path, err)
	}
	return rules, nil
}

// newCodecsClearCommand returns psidecar plan codecs clear. What waits under the rules that are
// dropped stays with the workers' proxies; drain is the verb that gets it out.
func newCodecsClearCommand(e env) *cobra.Command {
	var f codecsChange
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Drop a job's rules, or that for some keys: what proxies' own flags say holds again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.job == "" {
				return cli.Usagef("--job: want the job's scheduler, host:port")
			}
			return f.changeRules(cmd.Context(), e, func(before []values.Rule) ([]values.Rule, error) {
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
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have what waits of a job's pushes go along with the next ones, and then no codec",
		Long: `Have thresholds fall to nothing within --steps pushes of each layer, by whatever
rule they are, so that what waits goes along with the workers' own pushes, and
have no codec after that: before workers save a model. Keys that are not pushed
any more keep what waits of them; psidecar status says how much that is. Without
--keys it is for all of the job's keys, in place of all its rules.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.job == "":
				return cli.Usagef("--job: want the job's scheduler, host:port")
			case steps < 1:
				return cli.Usagef("--steps %d: want 1 or more", steps)
			}
			return f.changeRules(cmd.Context(), e, func(before []values.Rule) ([]values.Rule, error) {
				rule := values.Rule{End: steps}
				if err := f.fill(&rule); err != nil {
					return nil, err
				}
				if f.keys == "" {
					before = nil
				}
				return append([]values.Rule{rule}, client.WithoutRule(before, rule.Keys)...), nil
			})
		},
	}
	f.addFlags(cmd)
	f.setting = true
	cmd.Flags().IntVar(&steps, "steps", 50, "pushes of each layer until nothing waits")
	return cmd
}
