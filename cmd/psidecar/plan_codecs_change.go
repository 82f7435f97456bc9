package main

import (
	"context"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// codecsChange has the flags of a change of a job's rules for values.
type codecsChange struct{ ruleChange }

// fill sets the keys of a rule to those of --keys and checks it. Without the flag it leaves the
// rule as it is, for all keys.
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

// changeRules replaces the job's rules by what edit makes of them, or prints what that would
// be.
func (f *codecsChange) changeRules(ctx context.Context, e env, edit func([]values.Rule) ([]values.Rule, error)) error {
	if err := f.chooseJob(ctx); err != nil {
		return err
	}
	return f.run(ctx, e, &client.RuleChange{ChangeOptions: f.options(), Edit: edit}, "")
}
