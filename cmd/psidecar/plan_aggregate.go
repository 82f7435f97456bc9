package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/draw"
	"github.com/psidecar/psidecar/planner/api/measure"
)

func newPlanAggregateCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "aggregate",
		Short: "Compare ways to keep parameters the same on all machines, and have what a host pushes summed where that saves bytes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAggregateShowCommand(e), newAggregateApplyCommand(e), newAggregateClearCommand(e))
	return cmd
}

func newAggregateShowCommand(e env) *cobra.Command {
	var at, job string
	var on page.FormCluster
	var blocks int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [RECORDING...]",
		Short: "Show how sparsely a job uses ranges of its keys, and what each form would move",
		Long: `Show alpha, the share of a range's values that a worker uses in a step, as a
planner (or an agent, of its host's workers) has counted it or recordings have
it, and the bytes that the busiest machine would send and receive in a step, of
values alone, in each form (Parallax, Kim and others 2019, section 3.1):

  servers     each worker pulls and pushes what it uses, as PS-lite does
  host sums   each host does so once (--share-pulls and --aggregate host of psidecar proxy)
  all-reduce  all values by a ring of hosts
  all-gather  each host sends what its workers used to every other

Servers are taken to be on all machines with parameters spread evenly, workers
of a host to choose what they use apart from each other. psidecar itself has the
first two forms; the others would be another job.`,
		RunE: func(cmd *cobra.Command, recordings []string) error {
			if on.Machines < 0 || on.Each < 1 {
				return cli.Usagef("--machines %d, --each %d: want numbers above 0", on.Machines, on.Each)
			}
			a, err := alphaFrom(cmd.Context(), recordings, at, job, blocks, on)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(a)
			}
			return printAlpha(e.stdout, &a)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&at, "agent", client.PlannerURL, "URL of the planner's page, or an agent's")
	flags.StringVar(&job, "job", "", "the job, by its scheduler's host:port; may be left out where there is one")
	flags.IntVar(&blocks, "blocks", 64, "how finely keys are looked at; neighbours that are used alike are shown as one range")
	flags.IntVar(&on.Machines, "machines", 0, "reckon with so many machines that have workers; 0: those that the job is on")
	flags.IntVar(&on.Each, "each", 1, "with --machines: workers on each")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// alphaFrom asks the planner or agent at a URL, or looks into recordings, if any.
func alphaFrom(ctx context.Context, recordings []string, at, job string, blocks int, on page.FormCluster) (a page.Alpha, err error) {
	if len(recordings) == 0 {
		query := url.Values{"blocks": {strconv.Itoa(blocks)}}
		if job != "" {
			query.Set("job", job)
		}
		if on.Machines > 0 {
			query.Set("machines", strconv.Itoa(on.Machines))
			query.Set("each", strconv.Itoa(on.Each))
		}
		return a, client.Get(ctx, at, "/api/v1/alpha", query, &a)
	}
	state, err := agent.OpenRecordings(ctx, version, recordings)
	if err != nil {
		return a, err
	}
	if jobs := state.Jobs(); job == "" && len(jobs) == 1 {
		job = jobs[0].Name
	} else if job == "" {
		return a, cli.Usagef("there are %d jobs in the recordings: --job says which", len(jobs))
	}
	return page.AlphaOf(state, job, blocks, on)
}

func printAlpha(out io.Writer, a *page.Alpha) error {
	if a.Workers == 0 || a.Alpha == 0 {
		_, err := fmt.Fprintf(out, "job %s: no worker has pushed or pulled anything that was looked at yet\n", cli.Clean(a.Job))
		return err
	}
	more := ""
	if a.AtMost {
		more = " or less"
	}
	fmt.Fprintf(out, "job %s: alpha %s%s, %d keys, %s of values, steps of %d workers\n", cli.Clean(a.Job), draw.ShareText(a.Alpha), more, a.Keys, page.BytesText(a.Bytes), a.Workers)
	if a.Forms == nil {
		fmt.Fprintln(out, "the forms are of several machines: ask the planner, or say --machines")
	} else {
		fmt.Fprintf(out, "bytes of the busiest of %d machines with up to %d workers each, in a step:\n", a.Machines, a.Each)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "keys\tnumber\tvalues\talpha")
	if a.Forms != nil {
		fmt.Fprint(w, "\tservers\thost sums\tall-reduce\tall-gather\tleast")
	}
	fmt.Fprintln(w)
	for i := range a.Ranges {
		r := &a.Ranges[i]
		name := r.Name
		if name == "" {
			name = r.FirstText + " to " + r.LastText
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s", cli.Clean(name), r.Keys, page.BytesText(r.Bytes), draw.ShareText(r.Alpha))
		printForms(w, r.Forms, r.Least)
	}
	fmt.Fprintf(w, "all\t%d\t%s\t%s", a.Keys, page.BytesText(a.Bytes), draw.ShareText(a.Alpha))
	printForms(w, a.Forms, a.Least)
	if err := w.Flush(); err != nil || a.Forms == nil {
		return err
	}
	return printProposed(out, client.SumsOf(a))
}

// printProposed says of which keys sums are worth it.
func printProposed(out io.Writer, rules []measure.SumRule) error {
	if len(rules) == 0 {
		_, err := fmt.Fprintln(out, "proposed: no sums; they would not save a twentieth of the bytes of any range")
		return err
	}
	var texts []string
	for i := range rules {
		texts = append(texts, rules[i].String())
	}
	_, err := fmt.Fprintf(out, "proposed: %s (psidecar plan aggregate apply)\n", strings.Join(texts, ", "))
	return err
}

func printForms(w io.Writer, costs map[string]float64, least string) {
	if costs != nil {
		for form := range page.FormCount {
			fmt.Fprintf(w, "\t%s", page.BytesText(costs[form.String()]))
		}
		fmt.Fprintf(w, "\t%s", formTitles[least])
	}
	fmt.Fprintln(w)
}

// formTitles are the forms' names for people.
var formTitles = map[string]string{
	page.FormServers.String(): "servers", page.FormHostSums.String(): "host sums",
	page.FormAllReduce.String(): "all-reduce", page.FormAllGather.String(): "all-gather",
}
