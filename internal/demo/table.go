package demo

import (
	"fmt"
	"strings"
)

// columns are the widths of the table, for its header and rows alike. The last one is a bar.
const columns = "%-9s  %7s  %7s  %12s  %6s  %8s  %14s  %s"

// barUnit is the length of the bar of the baseline.
const barUnit = 4

// Columns returns the header of a table of results.
func Columns() string {
	return fmt.Sprintf(columns, "phase", "steps/s", "kB/step", "busiest host", "loss", "accuracy", "cores job+ours", "times as fast")
}

// Row returns the result as a row of the table, beginning with name; its bar says how many times
// as fast as base it is.
func (r *Result) Row(name string, base *Result) string {
	bar := "-"
	if base.StepsPerSecond > 0 {
		times := r.StepsPerSecond / base.StepsPerSecond
		bar = fmt.Sprintf("%s %.1f", strings.Repeat("█", max(1, int(barUnit*times+0.5))), times)
	}
	return fmt.Sprintf(columns, name,
		fmt.Sprintf("%.1f", r.StepsPerSecond), fmt.Sprintf("%.1f", r.BytesPerStep/1e3), fmt.Sprintf("%.1f kB", r.MaxHostBytes/1e3),
		figure("%.4f", 1, r.Loss), figure("%.2f%%", 100, r.Accuracy), cores(r), bar)
}

// cores describes how many cores the job's processes and psidecar's kept busy.
func cores(r *Result) string {
	if r.Seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f + %.2f", r.JobCPU/r.Seconds, r.PsidecarCPU/r.Seconds)
}

// figure formats a value times scale, or a dash if there is none.
func figure(format string, scale float64, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*scale)
}
