package client

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
)

// PrintNames prints names of ranges of keys as a table.
func PrintNames(out io.Writer, names []page.NamedKeys) error {
	if len(names) == 0 {
		fmt.Fprintln(out, "no key names; set them with --names FILE of agent, planner or up")
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "name\tfirst\tlast\tkeys-per-row\trow\tjob")
	for i := range names {
		r := &names[i].NamedRange
		// Cleaned before tabwriter measures them: a tab in a name would make a column of its own.
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", cli.Clean(r.Name), r.First, r.Last, r.KeysPerRow, r.Row, cli.Clean(r.Job))
	}
	return w.Flush()
}
