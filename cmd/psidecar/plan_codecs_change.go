package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// codecsChange is a change of a job's rules.
type codecsChange struct {
	planFlags
	keys string
	act  bool
	wait time.Duration
	// setting: rules are set; ahead: also for a job that is not there yet.
	setting, ahead bool
}

func (f *codecsChange) addFlags(cmd *cobra.Command) {
	f.planFlags.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.keys, "keys", "", "FIRST-LAST: for these keys only, both included; default: all")
	flags.BoolVar(&f.act, "act", false, "do it, rather than say what it would do")
	flags.DurationVar(&f.wait, "wait", 5*time.Second, "with --act: how long to wait until all proxies that follow have taken the rules up")
}

// fill puts the keys into a rule.
func (f *codecsChange) fill(r *values.Rule) error {
	if f.keys == "" {
		return nil
	}
	if err := r.Keys.UnmarshalText([]byte(f.keys)); err != nil {
		return cli.Usagef("--keys %q: %w", f.keys, err)
	}
	if err := r.Check(); err != nil {
		return cli.Usagef("--keys: %w", err)
	}
	return nil
}

// changeRules changes the job's rules, or says what that would be.
func (f *codecsChange) changeRules(ctx context.Context, e env, edit func([]values.Rule) ([]values.Rule, error)) error {
	change := client.RuleChange{Job: f.job, Edit: edit, Sets: f.setting, Ahead: f.ahead, Wait: f.wait}
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
		_, err = fmt.Fprintf(e.stdout, "set; taken up by %s\n", cli.Count(following, "proxy", "proxies"))
		return err
	})
}

func orNone(text string) string {
	if text == "" {
		return "none; what proxies' own flags say holds"
	}
	return text
}
