package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// printMeasures shows where measures hold for a job, and why not; those that
// nobody asked for in one line.
func printMeasures(w io.Writer, lines []measure.Line) {
	var unasked []string
	for i := range lines {
		l := &lines[i]
		if l.On == 0 && l.Setting == "" && slices.ContainsFunc(l.Not, func(g measure.Gap) bool { return g.Reason == measure.NotSet }) {
			unasked = append(unasked, l.Measure)
			continue
		}
		fmt.Fprintf(w, "  %s: %s\n", l.Measure, l)
		for k := range l.Not {
			fmt.Fprintf(w, "    %s\n", &l.Not[k])
		}
	}
	if len(unasked) > 0 {
		fmt.Fprintf(w, "  off, since nobody asked for them: %s\n", strings.Join(unasked, ", "))
	}
}

// printMeasuresByJob shows the lines of several jobs.
func printMeasuresByJob(w io.Writer, lines []measure.Line) {
	for len(lines) > 0 {
		job := lines[0].Job
		n := slices.IndexFunc(lines, func(l measure.Line) bool { return l.Job != job })
		if n < 0 {
			n = len(lines)
		}
		if job == "" {
			job = "not known by name"
		}
		fmt.Fprintf(w, "job %s\n", job)
		printMeasures(w, lines[:n])
		lines = lines[n:]
	}
}
