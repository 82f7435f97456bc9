package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/planner/api"
)

// ruleChange has the flags of the verbs that change a job's rules at the planner: rules for
// values (plan codecs) and on sums (plan aggregate). All of them only print what they would do,
// unless --act is given.
type ruleChange struct {
	planFlags
	keys string
	act  bool
	wait time.Duration
	// setting: rules are set, not removed; ahead: also for a job that the planner does
	// not know yet.
	setting, ahead bool
	forRun         bool // the rules are for the run that goes on alone
}

// errNoJob is what a change says that could be about several jobs, or about none yet.
var errNoJob = cli.Usagef("--job: name the job, as psidecar status does, or its scheduler's host:port; it may be left out while the planner knows exactly one")

// chooseJob makes the change about the only job that the planner knows, if none is named.
func (f *ruleChange) chooseJob(ctx context.Context) error {
	if f.job != "" {
		return nil
	}
	return f.planner.CallCodecs(ctx, func(ctx context.Context, c api.CodecsClient) error {
		d, err := c.Describe(ctx, &api.DescribeRulesRequest{})
		switch {
		case err != nil:
			return err
		case len(d.GetJobs()) != 1:
			return errNoJob
		}
		f.job = d.GetJobs()[0]
		return nil
	})
}

// addFlags adds the flags.
func (f *ruleChange) addFlags(cmd *cobra.Command) {
	f.planFlags.addFlags(cmd)
	flags := cmd.Flags()
	flags.Lookup("job").Usage = "job, by name or scheduler host:port (default: the only one)"
	flags.StringVar(&f.keys, "keys", "", "only these keys, as FIRST-LAST, inclusive (default: all)")
	flags.BoolVar(&f.act, "act", false, "apply the change (default: dry run)")
	flags.DurationVar(&f.wait, "wait", 5*time.Second, "with --act: how long to wait until all following proxies have accepted the rules")
}

// options returns what the flags say about the change, whatever rules it is about.
func (f *ruleChange) options() client.ChangeOptions {
	return client.ChangeOptions{Job: f.job, Sets: f.setting, Ahead: f.ahead, ForRun: f.forRun, Wait: f.wait}
}

// rulesProposal is a [client.RuleChange] or a [client.SumsChange]. Propose changes nothing and
// returns the rules as text; Carry sets those, and waits until the proxies have taken them up.
type rulesProposal interface {
	Propose(ctx context.Context, c api.CodecsClient) (before, after string, err error)
	Carry(ctx context.Context, c api.CodecsClient, rules string) (d *api.CodecsDescription, following int, err error)
}

// changeTries is how often a change is tried while others change the same rules.
const changeTries = 5

// run prints the rules before and after a change, or with --act carries it out. hint ends the
// line that reports success.
func (f *ruleChange) run(ctx context.Context, e env, change rulesProposal, hint string) error {
	return f.planner.CallCodecs(ctx, func(ctx context.Context, c api.CodecsClient) error {
		// Proposed in any case: with --act as well, the rules that are set are those computed
		// here.
		before, after, err := change.Propose(ctx, c)
		if err != nil {
			return err
		}
		if !f.act {
			_, err = fmt.Fprintf(e.stdout, "job %s\nnow:  %s\nthen: %s\ndry run: nothing was changed; use --act to apply\n", f.job, orNone(before), orNone(after))
			return err
		}
		d, following, err := change.Carry(ctx, c, after)
		for tries := 1; status.Code(err) == codes.Aborted && tries < changeTries; tries++ {
			// Somebody else was faster: the same change is made to the rules that there are now.
			if _, after, err = change.Propose(ctx, c); err != nil {
				return err
			}
			d, following, err = change.Carry(ctx, c, after)
		}
		switch {
		case err != nil:
			return err
		case f.json:
			return client.PrintProto(e.stdout, d)
		}
		_, err = fmt.Fprintf(e.stdout, "set; accepted by %s%s\n", cli.Count(following, "proxy", "proxies"), hint)
		return err
	})
}

// orNone returns the text of rules, or what it means that there are none.
func orNone(text string) string {
	if text == "" {
		return "none; the proxies' own flags apply"
	}
	return text
}
