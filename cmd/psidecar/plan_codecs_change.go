package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
		return usagef("--keys %q: %w", f.keys, err)
	}
	if err := r.Check(); err != nil {
		return usagef("--keys: %w", err)
	}
	return nil
}

func without(rules []values.Rule, keys values.Range) []values.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r values.Rule) bool { return r.Keys == keys })
}

// changeRules changes the job's rules, or says what that would be.
func (f *codecsChange) changeRules(ctx context.Context, e env, change func([]values.Rule) ([]values.Rule, error)) error {
	return withCodecs(ctx, &f.planner, func(ctx context.Context, c api.CodecsClient) error {
		d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: f.job})
		if err != nil {
			return err
		}
		was, err := rulesIn(d)
		if err != nil {
			return err
		}
		if err := f.isThere(d, len(was) > 0); err != nil {
			return err
		}
		rules, err := change(was)
		if err != nil {
			return err
		}
		text, err := textOf(rules)
		if err != nil {
			return err
		}
		if !f.act {
			before, err := textOf(was)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(e.stdout, "job %s\nnow:  %s\nthen: %s\nnothing is changed; --act does it\n", f.job, orNone(before), orNone(text))
			return err
		}
		set, err := c.Set(ctx, &api.JobRules{Job: f.job, Rules: text})
		if err != nil {
			return err
		}
		return f.await(ctx, e, c, set.GetVersion())
	})
}

// isThere returns an error where rules are to be set for a job of which nobody has
// heard; ruled: it has some.
func (f *codecsChange) isThere(d *api.CodecsDescription, ruled bool) error {
	jobs := d.GetJobs()
	switch {
	case !f.setting || f.ahead || ruled || slices.Contains(jobs, f.job):
		return nil
	case len(jobs) == 0:
		return usagef("--job %s: this planner knows no job: no agent reports one, and no proxy that follows it carries one (psidecar agent --planner, psidecar up or proxy --planner on the job's hosts); --ahead sets rules for a job that comes later", f.job)
	}
	return usagef("--job %s: this planner knows no such job, but %s%s; --ahead sets rules for a job that comes later",
		f.job, strings.Join(jobs[:min(len(jobs), 8)], ", "), didYouMean(f.job, jobs))
}

// rulesIn returns the rules of a description of one job.
func rulesIn(d *api.CodecsDescription) ([]values.Rule, error) {
	if len(d.GetRules().GetJobs()) == 0 {
		return nil, nil
	}
	return values.ParseRules(strings.NewReader(d.GetRules().GetJobs()[0].GetRules()))
}

// textOf is rules as JSON, empty where there are none.
func textOf(rules []values.Rule) (string, error) {
	if len(rules) == 0 {
		return "", nil
	}
	if err := values.CheckRules(rules); err != nil {
		return "", usageError{err}
	}
	text, err := json.Marshal(rules)
	return string(text), err
}

func orNone(text string) string {
	if text == "" {
		return "none; what proxies' own flags say holds"
	}
	return text
}

// await waits until the proxies that follow have taken rules up, and says who
// has not.
func (f *codecsChange) await(ctx context.Context, e env, c api.CodecsClient, version uint64) error {
	for end := time.Now().Add(f.wait); ; {
		d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: f.job})
		if err != nil {
			return err
		}
		following, behind, refused := 0, []string(nil), false
		for _, h := range d.GetFollowers() {
			if !h.GetFollowing() {
				continue
			}
			following++
			if h.GetVersion() < version {
				behind = append(behind, h.GetHost()+" "+followerState(h, version))
				refused = refused || h.GetRefused() != ""
			}
		}
		switch {
		case len(behind) == 0 && following == 0 && f.setting && !f.ahead:
			return errors.New("set, but it holds nowhere: no proxy follows this planner; start psidecar up, or psidecar proxy --planner, on the job's hosts")
		case len(behind) == 0 && f.json:
			return printProto(e.stdout, d)
		case len(behind) == 0:
			_, err := fmt.Fprintf(e.stdout, "set; taken up by %s\n", count(following, "proxy", "proxies"))
			return err
		case refused || time.Now().After(end):
			return fmt.Errorf("set, but not everywhere: %s", strings.Join(behind, "; "))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
