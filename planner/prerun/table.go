package prerun

import (
	"fmt"
	"io"
	"strings"
)

// Table prints the reports as a table for people, beginning with the random baseline. There must be
// at least one report, and all must be of the same graph.
func Table(w io.Writer, reports []*Report) error {
	var text strings.Builder
	r := reports[0]
	fmt.Fprintf(&text, "%d samples, %d parameters, %d edges on %d machines\n\n", r.Samples, r.Parameters, r.Edges, r.K)
	fmt.Fprintf(&text, "%-12s %12s %14s %12s %9s %12s %9s\n", "algorithm", "max", "total", "bound", "max/bound", "over random", "seconds")
	fmt.Fprintf(&text, "%-12s %12.0f %14.0f %12.0f %9.3f %12s %9s\n", "(random x 5)", r.Random.Max, r.Random.Total,
		2*r.Random.Total/float64(r.K), ratio(r.Random.Max, 2*r.Random.Total/float64(r.K)), "", "")
	for _, r := range reports {
		fmt.Fprintf(&text, "%-12s %12d %14d %12.0f %9.3f %12s %9.2f\n", r.Algorithm, r.Traffic.Max, r.Traffic.Total,
			r.Bound, ratio(float64(r.Traffic.Max), r.Bound), improvement(r), r.Seconds)
	}
	fmt.Fprintf(&text, "\nmax: parameters that the busiest machine moves per step, both ends counted\n")
	fmt.Fprintf(&text, "total: remote (worker, parameter) pairs; bound = 2 x total / k, the least max of that total\n")
	_, err := io.WriteString(w, text.String())
	return err
}

// improvement formats the improvement over random.
func improvement(r *Report) string {
	if r.ImprovementPercent == nil {
		return "no traffic"
	}
	return fmt.Sprintf("%.1f%%", *r.ImprovementPercent)
}

// ratio returns a / b, 1 if b is 0: a figure that is compared with nothing is no worse than it.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 1
	}
	return a / b
}
