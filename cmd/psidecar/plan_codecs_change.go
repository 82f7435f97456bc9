package main

import (
	"context"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// codecsChange is a change of a job's rules for values.
type codecsChange struct{ ruleChange }

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

// changeRules changes the job's rules, or prints the change.
func (f *codecsChange) changeRules(ctx context.Context, e env, edit func([]values.Rule) ([]values.Rule, error)) error {
	return f.run(ctx, e, &client.RuleChange{ChangeOptions: f.options(), Edit: edit}, "")
}
