package client

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/draw"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// An AlphaQuery says of which job alpha is asked for, and for which cluster.
type AlphaQuery struct {
	Job    string // empty: the only one
	Blocks int    // of keys, at most
	// Machines with workers, Each of them on each, with links of these Speeds in Mbit/s (empty:
	// all alike); Machines 0: the cluster that the job is on.
	Machines, Each int
	Speeds         []float64
}

// FetchAlpha asks the planner or agent at a URL for alpha and what follows from it.
func FetchAlpha(ctx context.Context, at string, q AlphaQuery) (a page.Alpha, err error) {
	query := url.Values{"blocks": {strconv.Itoa(q.Blocks)}}
	if q.Job != "" {
		query.Set("job", q.Job)
	}
	if q.Machines > 0 {
		query.Set("machines", strconv.Itoa(q.Machines))
		query.Set("each", strconv.Itoa(q.Each))
	}
	var speeds []string
	for _, speed := range q.Speeds {
		speeds = append(speeds, strconv.FormatFloat(speed, 'g', -1, 64))
	}
	if len(speeds) > 0 {
		query.Set("link-speed", strings.Join(speeds, ","))
	}
	err = Get(ctx, at, "/api/v1/alpha", query, &a)
	return a, err
}

// MeasuredSums returns the rules that a planner's counts propose for a job. No proposal is an
// error, so that a job's rules are not replaced by none.
func MeasuredSums(ctx context.Context, at, job string) ([]measure.SumRule, error) {
	a, err := FetchAlpha(ctx, at, AlphaQuery{Job: job, Blocks: 64})
	if err != nil {
		return nil, err
	}
	rules := a.SumRules()
	if len(rules) == 0 {
		return nil, fmt.Errorf("job %s: nothing to propose: no key range would save the busiest machine at least a twentieth, or no machine has two workers; use --form host to sum anyway", cli.Clean(job))
	}
	return rules, nil
}

// PrintAlpha prints a table of the ranges, with the bytes of each form if they are known, and
// below it what is proposed.
func PrintAlpha(out io.Writer, a *page.Alpha) error {
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
