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
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/draw"
)

// newPlanAggregateCommand returns psidecar plan aggregate with the verbs below it.
func newPlanAggregateCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "aggregate",
		Short: "Compare ways to synchronize parameters, and sum a host's pushes where that saves bytes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAggregateShowCommand(e), newAggregateApplyCommand(e), newAggregateClearCommand(e))
	return cmd
}

// newAggregateShowCommand returns psidecar plan aggregate show. It changes nothing, and asks a
// page rather than the planner's gRPC interface, since agents have the same figures of their
// own host.
func newAggregateShowCommand(e env) *cobra.Command {
	var at, job string
	var on imagined
	var blocks int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [RECORDING...]",
		Short: "Show how sparsely a job uses its key ranges, and the traffic of each form",
		Long: `Show alpha, the share of a range's values that a worker uses per step, as counted
by a planner (or by an agent, for its host's workers) or taken from recordings,
and the bytes of values that the busiest machine would send and receive per step
in each form (Parallax, Kim and others 2019, section 3.1):

  servers     each worker pulls and pushes what it uses, as in PS-lite
  host sums   each host does so once (--share-pulls and --aggregate host of psidecar proxy)
  all-reduce  all values in a ring of hosts
  all-gather  each host sends the values used by its workers to all others

A planner takes into account the hosts of workers and servers and their link
speeds, if known: the busiest machine is the one whose link takes the longest.
With --machines, servers are assumed on all machines, with parameters spread
evenly. The workers of a host are assumed to choose keys independently. psidecar
implements the first two forms and chooses one of them per range; the others
would need a different job.`,
		RunE: func(cmd *cobra.Command, recordings []string) error {
			if err := on.check(); err != nil {
				return err
			}
			a, err := alphaFrom(cmd.Context(), recordings, at, job, blocks, &on)
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
	flags.StringVar(&at, "agent", client.PlannerURL, "URL of the planner's or an agent's HTTP endpoint")
	flags.StringVar(&job, "job", "", "job, given by its scheduler's host:port; may be omitted if there is only one")
	flags.IntVar(&blocks, "blocks", 64, "number of key blocks to analyze; adjacent blocks with similar use are shown as one range")
	on.register(flags)
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// imagined is a cluster to reckon with in place of the one that the job is on.
type imagined struct {
	machines, each int       // machines with workers, and workers on each; machines 0: the real cluster
	speeds         []float64 // Mbit/s; empty: all alike
}

// register adds the flags.
func (i *imagined) register(flags *pflag.FlagSet) {
	flags.IntVar(&i.machines, "machines", 0, "compute for this number of machines with workers; 0: the machines of the job")
	flags.IntVar(&i.each, "each", 1, "with --machines: workers per machine")
	flags.Float64SliceVar(&i.speeds, "link-speed", nil, "with --machines: link speed of each machine in Mbit/s (default: all equal)")
}

// check returns a usage error for a cluster that makes no sense. A page that is asked checks by
// the same function, but its error would not name the flags.
func (i *imagined) check() error {
	if _, err := page.ClusterOf(i.machines, i.each, i.speeds); err != nil {
		return cli.Usagef("--machines, --each, --link-speed: %w", err)
	}
	return nil
}

// alphaFrom returns alpha and what follows from it, in up to blocks ranges of keys: from
// recordings if there are any, else from the planner or agent at a URL. The computation is the
// same, [page.AlphaOf], here or there.
func alphaFrom(ctx context.Context, recordings []string, at, job string, blocks int, on *imagined) (a page.Alpha, err error) {
	if len(recordings) == 0 {
		query := url.Values{"blocks": {strconv.Itoa(blocks)}}
		if job != "" {
			query.Set("job", job)
		}
		if on.machines > 0 {
			query.Set("machines", strconv.Itoa(on.machines))
			query.Set("each", strconv.Itoa(on.each))
		}
		var speeds []string
		for _, speed := range on.speeds {
			speeds = append(speeds, strconv.FormatFloat(speed, 'g', -1, 64))
		}
		if len(speeds) > 0 {
			query.Set("link-speed", strings.Join(speeds, ","))
		}
		return a, client.Get(ctx, at, "/api/v1/alpha", query, &a)
	}
	// Recordings are read as psidecar show reads them, into a state that answers the same
	// queries.
	state, err := agent.OpenRecordings(ctx, version, recordings)
	if err != nil {
		return a, err
	}
	if jobs := state.Jobs(); job == "" && len(jobs) == 1 {
		job = jobs[0].Name
	} else if job == "" {
		return a, cli.Usagef("the recordings contain %d jobs: select one with --job", len(jobs))
	}
	cluster, err := page.ClusterOf(on.machines, on.each, on.speeds)
	if err != nil {
		return a, err
	}
	return page.AlphaOf(state, job, blocks, cluster)
}

// printAlpha prints a table of the ranges, with the bytes of each form if they are known, and
// below it what is proposed.
func printAlpha(out io.Writer, a *page.Alpha) error {
	if a.Workers == 0 || a.Alpha == 0 {
		_, err := fmt.Fprintf(out, "job %s: no pushes or pulls have been inspected yet\n", cli.Clean(a.Job))
		return err
	}
	// A planner does not know how far the keys of hosts overlap; then alpha is a bound.
	more := ""
	if a.AtMost {
		more = " or less"
	}
	fmt.Fprintf(out, "job %s: alpha %s%s, %d keys, %s of values, steps of %d workers\n", cli.Clean(a.Job), draw.ShareText(a.Alpha), more, a.Keys, page.BytesText(a.Bytes), a.Workers)
	// An agent knows its own host only, and forms are of several.
	if a.Forms == nil {
		fmt.Fprintln(out, "forms need several machines: query the planner, or set --machines")
	} else {
		spread := ""
		if a.Even {
			spread = ", with parameters spread evenly over all"
		}
		fmt.Fprintf(out, "bytes of the busiest of %d machines with up to %d workers each, in a step%s:\n", a.Machines, a.Each, spread)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "keys\tnumber\tvalues\talpha")
	if a.Forms != nil {
		fmt.Fprint(w, "\tservers\thost sums\tall-reduce\tall-gather\tleast\tchosen")
	}
	fmt.Fprintln(w)
	for i := range a.Ranges {
		r := &a.Ranges[i]
		name := r.Name
		if name == "" {
			name = r.FirstText + " to " + r.LastText
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s", cli.Clean(name), r.Keys, page.BytesText(r.Bytes), draw.ShareText(r.Alpha))
		printForms(w, &r.Compared)
	}
	fmt.Fprintf(w, "all\t%d\t%s\t%s", a.Keys, page.BytesText(a.Bytes), draw.ShareText(a.Alpha))
	// The last row is of all ranges together. Its busiest machine need not be that of any
	// range.
	printForms(w, &a.Compared)
	if err := w.Flush(); err != nil || a.Forms == nil {
		return err
	}
	return printProposed(out, a)
}

// printProposed prints for which keys sums are worth it, and what they would make of the
// busiest machine.
func printProposed(out io.Writer, a *page.Alpha) error {
	rules := a.SumRules()
	if len(rules) == 0 {
		_, err := fmt.Fprintf(out, "proposed: no sums; they would save less than a twentieth of every range%s\n", atBusiest(a))
		return err
	}
	var texts []string
	for i := range rules {
		texts = append(texts, rules[i].String())
	}
	_, err := fmt.Fprintf(out, "proposed: %s (psidecar plan aggregate apply)%s\n", strings.Join(texts, ", "), atBusiest(a))
	return err
}

// atBusiest returns a line about what the busiest machine moves in a step now, and what it
// would move with the proposal. Seconds of its link are given where the planner knows its
// speed.
func atBusiest(a *page.Alpha) string {
	servers := page.FormServers.String()
	text := "\nbusiest machine: " + page.BytesText(a.Forms[servers])
	if host := a.Busiest[servers]; host != "" {
		text += " at " + cli.Clean(host)
	}
	took, would := a.Seconds[servers], a.ChosenSeconds
	if took > 0 {
		text += fmt.Sprintf(", %s of its link", secondsText(took))
	}
	if a.ChosenBytes == a.Forms[servers] {
		return text
	}
	text += "; as proposed " + page.BytesText(a.ChosenBytes)
	if would > 0 {
		text += ", " + secondsText(would)
	}
	return text
}

// secondsText formats seconds as milliseconds with three digits.
func secondsText(s float64) string { return fmt.Sprintf("%.3g ms", 1e3*s) }

// printForms ends a row: with the bytes of all forms if they are known, the least of them and
// the one that is chosen.
func printForms(w io.Writer, c *page.Compared) {
	if c.Forms != nil {
		for form := range page.FormCount {
			fmt.Fprintf(w, "\t%s", page.BytesText(c.Forms[form.String()]))
		}
		fmt.Fprintf(w, "\t%s\t%s", formTitles[c.Least], formTitles[c.Chosen]) // of all ranges none is chosen
	}
	fmt.Fprintln(w)
}

// formTitles are the forms' names in the table's columns. None stands for no form.
var formTitles = map[string]string{
	page.FormServers.String(): "servers", page.FormHostSums.String(): "host sums",
	page.FormAllReduce.String(): "all-reduce", page.FormAllGather.String(): "all-gather",
}
