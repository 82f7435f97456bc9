package simulate

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// tableRows is how many rows of epochs a table has at most. A row of several epochs shows their
// mean.
const tableRows = 20

// Table prints the outcome of each strategy, and the busiest machine's bytes epoch by epoch.
func Table(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "strategy\tbusiest machine\tx below home\ttotal\tmigration\tmoves\t")
	// Strategies are compared with all keys at home; without that one in results, no factor is
	// printed.
	home := 0.0
	for _, r := range results {
		if r.Strategy == "home" {
			home = r.Sum.Busiest
		}
	}
	for _, r := range results {
		below := "-"
		if home > 0 && r.Sum.Busiest > 0 {
			below = fmt.Sprintf("%.2f", home/r.Sum.Busiest)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t\n", r.Strategy, size(r.Sum.Busiest), below, size(r.Sum.Total), size(r.Sum.Migration), r.Sum.Moves)
	}
	fmt.Fprint(t, "\nepoch\t")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t", r.Strategy)
	}
	fmt.Fprintln(t)
	if len(results) == 0 {
		return t.Flush()
	}
	// All results are of the same recording, so they have the same epochs.
	n := len(results[0].Epochs)
	// Group epochs so that they fit in tableRows rows.
	each := max(1, (n+tableRows-1)/tableRows)
	for from := 0; from < n; from += each {
		to := min(from+each, n)
		name := fmt.Sprint(from)
		if to > from+1 {
			name = fmt.Sprintf("%d-%d", from, to-1)
		}
		fmt.Fprintf(t, "%s\t", name)
		for _, r := range results {
			sum := 0.0
			for _, e := range r.Epochs[from:to] {
				sum += e.Busiest
			}
			fmt.Fprintf(t, "%s\t", size(sum/float64(to-from)))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// size formats a number of bytes with three digits.
func size(n float64) string {
	for _, u := range []string{"B", "kB", "MB", "GB", "TB"} {
		if n < 1000 || u == "TB" {
			switch {
			case u == "B" || n >= 100:
				return fmt.Sprintf("%.0f %s", n, u)
			case n >= 10:
				return fmt.Sprintf("%.1f %s", n, u)
			}
			return fmt.Sprintf("%.2f %s", n, u)
		}
		n /= 1000
	}
	panic("unreachable")
}
