package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// sumsChange has the flags of a change of a job's rules on sums.
type sumsChange struct{ ruleChange }

// span returns the keys of --keys; nil for all.
func (f *sumsChange) span() (*measure.KeyRange, error) {
	if f.keys == "" {
		return nil, nil
	}
	var k measure.KeyRange
	if err := k.UnmarshalText([]byte(f.keys)); err != nil {
		return nil, cli.Usagef("--keys: %w", err)
	}
	return &k, nil
}

// changeSums replaces the job's rules by what edit makes of them, or prints what that would be.
// The success message points at psidecar status, as a proxy that has taken the rules up may
// still not sum, for want of --handler add.
func (f *sumsChange) changeSums(ctx context.Context, e env, edit func([]measure.SumRule) ([]measure.SumRule, error)) error {
	if err := f.chooseJob(ctx); err != nil {
		return err
	}
	change := client.SumsChange{ChangeOptions: f.options(), Edit: edit}
	return f.run(ctx, e, &change, "; the aggregate line of psidecar status shows where it is in effect")
}

// newAggregateApplyCommand returns psidecar plan aggregate apply. Without --form it asks for
// alpha within the change, so that what is set is what was counted at that moment and not what
// an earlier show printed.
func newAggregateApplyCommand(e env) *cobra.Command {
	f := sumsChange{ruleChange{setting: true}}
	var at, form string
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Sum the pushes of each host's workers, for key ranges where that saves bytes or for given keys",
		Long: `Sum the pushes of a host's workers before they leave. Without --form, this applies
to the key ranges proposed by psidecar plan aggregate show and replaces all of the
job's rules. With --form, it applies to --keys, or all keys, and takes precedence
over the job's other rules. --form none disables sums regardless of the proxies'
flags, and keeps a planner with --act from setting rules itself.

Proxies with --aggregate host, auto or asked follow these rules. Other proxies do
not know that the job's servers add (--handler add), and ignore them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := f.span()
			switch {
			case err != nil:
				return err
			case form == "" && keys != nil:
				return cli.Usagef("--keys requires --form host or none: without --form, the measured ranges are used")
			case form != "" && form != measure.SumHost && form != measure.SumNone:
				return cli.Usagef("--form %q: want %s or %s, or omit it", form, measure.SumHost, measure.SumNone)
			}
			return f.changeSums(cmd.Context(), e, func(before []measure.SumRule) ([]measure.SumRule, error) {
				if form == "" {
					return client.MeasuredSums(cmd.Context(), at, f.job)
				}
				// First, as the first rule that covers a key decides.
				rule := measure.SumRule{Keys: keys, Form: form}
				return append([]measure.SumRule{rule}, client.WithoutSums(before, rule.Range())...), nil
			})
		},
	}
	f.addFlags(cmd)
	cmd.Flags().StringVar(&at, "agent", client.PlannerURL, "URL of the planner's HTTP endpoint, the source of alpha")
	cmd.Flags().StringVar(&form, "form", "", "host: sum pushes of these keys; none: do not (default: as proposed from measured alpha)")
	cmd.Flags().BoolVar(&f.ahead, "ahead", false, "allow jobs that are not known yet, and planners that no proxy follows yet")
	return cmd
}

// newAggregateClearCommand returns psidecar plan aggregate clear. A job that the planner does
// not know is no error here: nothing is left of its rules either way.
func newAggregateClearCommand(e env) *cobra.Command {
	var f sumsChange
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Remove a job's rules on sums, or those for some keys; the proxies' own flags apply again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := f.span()
			if err != nil {
				return err
			}
			return f.changeSums(cmd.Context(), e, func(before []measure.SumRule) ([]measure.SumRule, error) {
				if keys == nil {
					return nil, nil
				}
				return client.WithoutSums(before, *keys), nil
			})
		},
	}
	f.addFlags(cmd)
	return cmd
}
