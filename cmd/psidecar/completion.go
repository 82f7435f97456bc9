package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/planner/simulate"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// choices returns the values of flags that take a few words, by the flag's name. A flag that
// several commands have takes the same words in all of them. Other values may be allowed, too:
// for numbers these are examples.
func choices() map[string][]string {
	measures := make([]string, len(page.Measures))
	for i, m := range page.Measures {
		measures[i] = string(m)
	}
	floats := []string{"float32", "float64", "float16", "bfloat16"}
	return map[string][]string{
		"algorithm": prerun.Algorithms(), "strategies": simulate.Strategies(), "strategy": live.Strategies(), "planner-strategy": live.Strategies(),
		"codec": {daemon.AutoCodec, daemon.CompactCodec, "none"}, "split": {daemon.SplitNone, daemon.SplitAuto, "2", "4", "8"}, "aggregate": {daemon.AggregateHost, daemon.AggregateAuto, daemon.AggregateAsked, daemon.AggregateNone}, "measure": measures, "handler": {"add", "assign", "none"}, "ingress": {"off", "metas", "all"},
		"char-values": floats, "hash-scheme": {"oph", "bcws"}, "log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"}, "sample": {"auto", "1"}, "by": {"worker", "time"},
		"threshold": {"auto", "0.9", "0.95", "0.99"}, "quantize": {"1", "2", "4", "8"}, "slim": {"0.3,0.15"},
	}
}

// addCompletion completes the values of flags of cmd and of all commands below it: words from
// [choices], and for --job the jobs that there are. It comes when all commands have their
// flags. Addresses are not completed at all, where a shell would offer files by default.
func addCompletion(cmd *cobra.Command) {
	words := choices()
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		list, ok := words[f.Name]
		switch {
		case f.Name == "job":
			must(cmd.RegisterFlagCompletionFunc(f.Name, completeJob))
		case ok:
			must(cmd.RegisterFlagCompletionFunc(f.Name, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
				return list, cobra.ShellCompDirectiveNoFileComp
			}))
		// Addresses: without this, shells offer the files of the folder.
		case f.Name == "agent" || f.Name == "live" || f.Name == "proxy" || f.Name == "planner" || f.Name == "host":
			must(cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions))
		}
	})
	for _, sub := range cmd.Commands() {
		addCompletion(sub)
	}
}

// must panics on an error that only a mistake in the source can cause, such as two completions
// for one flag.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// completeFor is how long an agent or planner may take to name its jobs. Somebody waits at a
// prompt meanwhile.
const completeFor = time.Second

// completeJob completes --job with the jobs of the planner or agent that the command line names
// so far. It runs in a process of its own, which the shell starts for each press of the key,
// and has no error to show: if nobody answers, nothing is offered.
func completeJob(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completeFor)
	defer cancel()
	var names []string
	// The verbs below psidecar plan, and restore, ask a planner by gRPC. psidecar agent and up
	// have a flag --planner as well, which says where they report.
	if f := cmd.Flags().Lookup("planner"); f != nil && cmd.Flags().Lookup("agent") == nil && cmd.HasParent() && cmd.Parent().Name() != "psidecar" || cmd.Name() == "restore" {
		link := &client.Planner{Address: f.Value.String()}
		_ = link.CallCodecs(ctx, func(ctx context.Context, c api.CodecsClient) error { // no planner: no names
			d, err := c.Describe(ctx, &api.DescribeRulesRequest{})
			names = d.GetJobs()
			return err
		})
	} else {
		at := client.AgentURL
		if f := cmd.Flags().Lookup("agent"); f != nil {
			at = f.Value.String()
		}
		var jobs page.Jobs
		if client.Get(ctx, at, "/api/v1/jobs", nil, &jobs) == nil {
			for _, j := range jobs.Jobs {
				names = append(names, j.Name)
			}
		}
	}
	// cobra does not filter what a completion function returns.
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, typed) }), cobra.ShellCompDirectiveNoFileComp
}
