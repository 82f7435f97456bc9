package measure

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Print prints where the measures of a job hold and why not, with those that were not requested on
// a single line.
func Print(w io.Writer, lines []Line) {
	var unasked []string
	for i := range lines {
		l := &lines[i]
		if l.On == 0 && l.Setting == "" && l.HeldValues == 0 && slices.ContainsFunc(l.Not, func(g Gap) bool { return g.Reason == NotSet }) {
			unasked = append(unasked, l.Measure)
			continue
		}
		fmt.Fprintf(w, "  %s: %s\n", l.Measure, l)
		for k := range l.Not {
			fmt.Fprintf(w, "    %s\n", &l.Not[k])
		}
	}
	if len(unasked) > 0 {
		fmt.Fprintf(w, "  not enabled: %s\n", strings.Join(unasked, ", "))
	}
}

// PrintByJob prints the lines of several jobs, which must be sorted by job.
func PrintByJob(w io.Writer, lines []Line) {
	for len(lines) > 0 {
		job := lines[0].Job
		n := slices.IndexFunc(lines, func(l Line) bool { return l.Job != job })
		if n < 0 {
			n = len(lines)
		}
		if job == "" {
			job = "unknown"
		}
		fmt.Fprintf(w, "job %s\n", job)
		Print(w, lines[:n])
		lines = lines[n:]
	}
}
