package demo

import "fmt"

// columns are the widths of the table, for its header and rows alike.
const columns = "%-9s  %8s  %12s  %18s  %7s  %8s  %20s"

// Columns returns the header of a table of results.
func Columns() string {
	return fmt.Sprintf(columns, "phase", "steps/s", "kB per step", "busiest host's kB", "loss", "accuracy", "cores job / psidecar")
}

// Row returns the result as a row of the table, beginning with name.
func (r *Result) Row(name string) string {
	return fmt.Sprintf(columns, name,
		fmt.Sprintf("%.1f", r.StepsPerSecond), fmt.Sprintf("%.1f", r.BytesPerStep/1e3), fmt.Sprintf("%.1f", r.MaxHostBytes/1e3),
		figure("%.4f", 1, r.Loss), figure("%.2f%%", 100, r.Accuracy), cores(r))
}

// cores describes how many cores the job's processes and psidecar's kept busy.
func cores(r *Result) string {
	if r.Seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f / %.2f", r.JobCPU/r.Seconds, r.PsidecarCPU/r.Seconds)
}

// figure formats a value times scale, or a dash if there is none.
func figure(format string, scale float64, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*scale)
}
