package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// ChangeOptions are common to changes of rules, of a job's values or of its sums.
type ChangeOptions struct {
	Job string // its scheduler's host:port, or its name
	// Sets: rules are set, rather than removed. A job that the planner does not know is
	// refused then, since it is mostly a typing error, and so is a planner that no proxy
	// follows; Ahead allows both.
	Sets, Ahead bool
	// ForRun: the rules hold for the run of the job that goes on, and later runs have those of
	// before.
	ForRun bool
	Wait   time.Duration // for proxies to apply the rules

	// The rules as Propose has read them; nil before that.
	read *string
}

// request returns the call that sets rules. With rules that Propose has read it asks the planner to
// refuse if the job has others by now: a change of somebody else would be lost.
func (r *ChangeOptions) request(rules string) *api.JobRules {
	j := &api.JobRules{Job: r.Job, Rules: rules}
	if r.read != nil {
		j.Compare, j.Before = true, *r.read
		if r.ForRun {
			j.ForRun, j.Later = true, *r.read
		}
	}
	return j
}

// readFrom keeps which rules the job has, and returns them.
func (r *ChangeOptions) readFrom(jobs []*api.JobRules) string {
	text := firstText(jobs)
	r.read = &text
	return text
}

// firstText returns the rules of a job, empty where there are none.
func firstText(jobs []*api.JobRules) string {
	if len(jobs) == 0 {
		return ""
	}
	return jobs[0].GetRules()
}

// A RuleChange changes the rules that a planner has for the values of a job.
type RuleChange struct {
	ChangeOptions
	// Edit returns the rules that replace those of before.
	Edit func(before []values.Rule) ([]values.Rule, error)
}

// WithoutRule returns rules without that for some keys.
func WithoutRule(rules []values.Rule, keys values.Range) []values.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r values.Rule) bool { return r.Keys == keys })
}

// ReadRules reads the YAML file of --file, a list of rules. A file with a fault is a usage error.
func ReadRules(path string) ([]values.Rule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading --file: %w", err)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, cli.Usagef("--file %s: %w", path, err)
	}
	// The same reader as for proxies' configuration files, so that one text serves both.
	rules, err := values.ReadYAML(&node)
	if err != nil {
		return nil, cli.Usagef("--file %s: %w", path, err)
	}
	return rules, nil
}

// Propose returns the rules that the job has and those that it would have, as JSON;
// empty: none. It changes nothing.
func (r *RuleChange) Propose(ctx context.Context, c api.CodecsClient) (before, after string, err error) {
	d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: r.Job})
	if err != nil {
		return "", "", err
	}
	was, err := rulesIn(r.readFrom(d.GetRules().GetJobs()))
	if err != nil {
		return "", "", err
	}
	if err := r.isThere(d, len(was) > 0); err != nil {
		return "", "", err
	}
	rules, err := r.Edit(was)
	if err != nil {
		return "", "", err
	}
	if after, err = textOf(rules); err != nil {
		return "", "", err
	}
	before, err = textOf(was)
	return before, after, err
}

// isThere returns an error where rules are to be set for a job of which nobody has
// heard; ruled: it has some.
func (r *ChangeOptions) isThere(d *api.CodecsDescription, ruled bool) error {
	jobs := d.GetJobs()
	switch {
	case !r.Sets || r.Ahead || ruled || slices.Contains(jobs, r.Job):
		return nil
	case len(jobs) == 0:
		return cli.Usagef("--job %s: this planner knows no jobs: no agent reports one, and no following proxy carries one (start psidecar agent --planner, psidecar up or psidecar proxy --planner on the job's hosts); --ahead sets rules for a future job", r.Job)
	}
	return cli.Usagef("--job %s: unknown job; this planner knows %s%s; --ahead sets rules for a future job",
		r.Job, strings.Join(jobs[:min(len(jobs), 8)], ", "), cli.DidYouMean(r.Job, jobs))
}

// rulesIn returns the rules in a text, which is empty where there are none.
func rulesIn(text string) ([]values.Rule, error) {
	if text == "" {
		return nil, nil
	}
	return values.ParseRules(strings.NewReader(text))
}

// textOf is rules as JSON, empty where there are none.
func textOf(rules []values.Rule) (string, error) {
	if len(rules) == 0 {
		return "", nil
	}
	if err := values.CheckRules(rules); err != nil {
		return "", cli.UsageError{Err: err}
	}
	text, err := json.Marshal(rules)
	return string(text), err
}

// Carry sets rules, as Propose returns them, and waits until the proxies that follow
// the planner have taken them up; following is how many do. The error of one that has
// not, or has refused, names it. The planner's is ABORTED if somebody else has changed the
// rules since Propose has read them; nothing is set then.
func (r *RuleChange) Carry(ctx context.Context, c api.CodecsClient, rules string) (d *api.CodecsDescription, following int, err error) {
	set, err := c.Set(ctx, r.request(rules))
	if err != nil {
		return nil, 0, err
	}
	return r.await(ctx, c, set.GetVersion(), rules, (*api.CodecRules).GetJobs)
}

// await waits until the proxies that follow the planner have taken up the rules that were set with
// that version; of selects their kind. It is an error if the planner has others by then.
func (r *ChangeOptions) await(ctx context.Context, c api.CodecsClient, set uint64, rules string, of func(*api.CodecRules) []*api.JobRules) (d *api.CodecsDescription, following int, err error) {
	for end := time.Now().Add(r.Wait); ; {
		if d, err = c.Describe(ctx, &api.DescribeRulesRequest{Job: r.Job}); err != nil {
			return nil, 0, err
		}
		if firstText(of(d.GetRules())) != rules {
			return nil, 0, fmt.Errorf("set, but job %s has other rules by now: the planner has restarted without a --store and forgotten them, or somebody else has changed them: look at them and repeat the change", r.Job)
		}
		// A planner that has restarted meanwhile counts from 1, and all of its versions have the
		// rules.
		version := min(set, d.GetRules().GetVersion())
		behind, refused := []string(nil), false
		following = 0
		for _, h := range d.GetFollowers() {
			if !h.GetFollowing() {
				continue
			}
			following++
			if h.GetVersion() < version {
				behind = append(behind, h.GetHost()+" "+FollowerState(h, version))
				refused = refused || h.GetRefused() != ""
			}
		}
		switch {
		case len(behind) == 0 && following == 0 && r.Sets && !r.Ahead:
			return nil, 0, errors.New("set, but not in effect: no proxy follows this planner; start psidecar up or psidecar proxy --planner on the job's hosts")
		case len(behind) == 0:
			return d, following, nil
		case refused || time.Now().After(end):
			return nil, 0, fmt.Errorf("set, but not in effect everywhere: %s", strings.Join(behind, "; "))
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// FollowerState says in words what a proxy did with rules of a version.
func FollowerState(h *api.CodecFollower, version uint64) string {
	switch {
	case !h.GetFollowing():
		return "no longer follows"
	case h.GetRefused() != "":
		return "refused: " + h.GetRefused()
	case h.GetVersion() < version:
		return "has not accepted them yet"
	}
	return "has accepted them"
}

// reportIn is how long a proxy may take to report when a trial is over.
const reportIn = 10 * time.Second

// AwaitTrial waits until all followers have reported on a trial, or it has been
// over for a while. A planner that knows it no more is an error.
func AwaitTrial(ctx context.Context, c api.CodecsClient, job string, trial *api.CodecTrial) (*api.CodecsDescription, error) {
	end := time.Now().Add(time.Duration(trial.GetSeconds())*time.Second + reportIn)
	for {
		d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: job})
		if err != nil {
			return nil, err
		}
		if d.GetTrial().GetNumber() != trial.GetNumber() {
			return nil, errors.New("the results are lost: the planner has restarted, or another trial has begun since; try again")
		}
		waits := false
		for _, h := range d.GetFollowers() {
			waits = waits || h.GetFollowing() && h.GetTrial() < trial.GetNumber()
		}
		if !waits || time.Now().After(end) {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
