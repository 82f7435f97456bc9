package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// sumsChange is a change of a job's rules on sums.
type sumsChange struct {
	planFlags
	keys       string
	act, ahead bool
	wait       time.Duration
}

func (f *sumsChange) addFlags(cmd *cobra.Command) {
	f.planFlags.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.keys, "keys", "", "FIRST-LAST: for these keys only, both included; default: all")
	flags.BoolVar(&f.act, "act", false, "do it, rather than say what it would do")
	flags.DurationVar(&f.wait, "wait", 5*time.Second, "with --act: how long to wait until all proxies that follow have taken the rules up")
}

// span returns the keys of --keys; nil: all.
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

// change changes the job's rules, or says what that would be.
func (f *sumsChange) change(ctx context.Context, e env, sets bool, edit func([]measure.SumRule) ([]measure.SumRule, error)) error {
	if f.job == "" {
		return cli.Usagef("--job: want the job's scheduler, host:port")
	}
	change := client.SumsChange{Job: f.job, Edit: edit, Sets: sets, Ahead: f.ahead, Wait: f.wait}
	return f.planner.CallCodecs(ctx, func(ctx context.Context, c api.CodecsClient) error {
		before, after, err := change.Propose(ctx, c)
		if err != nil {
			return err
		}
		if !f.act {
			_, err = fmt.Fprintf(e.stdout, "job %s\nnow:  %s\nthen: %s\nnothing is changed; --act does it\n", f.job, orNone(before), orNone(after))
			return err
		}
		d, following, err := change.Carry(ctx, c, after)
		switch {
		case err != nil:
			return err
		case f.json:
			return printProto(e.stdout, d)
		}
		_, err = fmt.Fprintf(e.stdout, "set; taken up by %s; the line of aggregate in psidecar status says where it holds\n", cli.Count(following, "proxy", "proxies"))
		return err
	})
}

func newAggregateApplyCommand(e env) *cobra.Command {
	var f sumsChange
	var at, form string
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Have pushes of a host's workers be summed, of keys of which that saves bytes or of those that are named",
		Long: `Have what workers of a host push be summed before it leaves: of the ranges of
keys of which psidecar plan aggregate show proposes it, in place of all of the
job's rules, or with --form of the keys of --keys, or all, before its other
rules. --form none has pushes go one by one, whatever proxies' flags say, and
keeps a planner with --act from setting rules of itself.

Proxies with --aggregate host, auto or asked take it up; those without do not
know that the job's servers add (--handler add), and leave its pushes alone.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := f.span()
			switch {
			case err != nil:
				return err
			case form == "" && keys != nil:
				return cli.Usagef("--keys needs --form host or none: without it ranges are those that were measured")
			case form != "" && form != measure.SumHost && form != measure.SumNone:
				return cli.Usagef("--form %q: want %s or %s, or leave it out", form, measure.SumHost, measure.SumNone)
			}
			return f.change(cmd.Context(), e, true, func(before []measure.SumRule) ([]measure.SumRule, error) {
				if form == "" {
					return measuredSums(cmd.Context(), at, f.job)
				}
				rule := measure.SumRule{Keys: keys, Form: form}
				return append([]measure.SumRule{rule}, client.WithoutSums(before, rule.Range())...), nil
			})
		},
	}
	f.addFlags(cmd)
	cmd.Flags().StringVar(&at, "agent", client.PlannerURL, "URL of the planner's page, where alpha is asked for")
	cmd.Flags().StringVar(&form, "form", "", "host: sum pushes of these keys, none: do not; left out: what is proposed by measured alpha")
	cmd.Flags().BoolVar(&f.ahead, "ahead", false, "also for a job that nobody knows yet, and where no proxy follows the planner yet")
	return cmd
}

// measuredSums returns the rules that a planner's counts propose for a job.
func measuredSums(ctx context.Context, at, job string) ([]measure.SumRule, error) {
	a, err := alphaFrom(ctx, nil, at, job, 64, page.FormCluster{Each: 1})
	if err != nil {
		return nil, err
	}
	rules := client.SumsOf(&a)
	if len(rules) == 0 {
		return nil, fmt.Errorf("job %s: nothing to propose: by what was counted no range of keys would take a twentieth less, or no machine has two workers; --form host sums all the same", cli.Clean(job))
	}
	return rules, nil
}

func newAggregateClearCommand(e env) *cobra.Command {
	var f sumsChange
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Drop a job's rules on sums, or that for some keys: what proxies' own flags say holds again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := f.span()
			if err != nil {
				return err
			}
			return f.change(cmd.Context(), e, false, func(before []measure.SumRule) ([]measure.SumRule, error) {
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
