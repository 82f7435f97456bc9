package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/require"
)

// TestMeasureSweep runs a sweep of small graphs: each algorithm has a column and a line, and
// those that look at the graph move less than random does.
func TestMeasureSweep(t *testing.T) {
	var out, log bytes.Buffer
	e := &evaluation{dir: t.TempDir(), out: &out, log: &log}
	s := fig8()
	s.values = []float64{2, 8}
	p := require.Value(s.measure(t.Context(), e, density{"medium", 0.98}, 200, 2))(t)
	if want := len(prerun.AllAlgorithms()) - 1; len(p.Lines) != want {
		t.Fatalf("%d lines for random and %d other algorithms", len(p.Lines), want)
	}
	for _, l := range p.Lines {
		if !strings.Contains(out.String(), " "+l.Name+" |") {
			t.Errorf("no column %s in\n%s", l.Name, out.String())
		}
		for i, point := range l.Points {
			if point.X != s.values[i] || point.Y <= 0 {
				t.Errorf("%s at k = %g: %.1f%% over random", l.Name, point.X, point.Y)
			}
		}
	}
	if rows := strings.Count(out.String(), "\n| "); rows != 1+len(s.values) {
		t.Errorf("%d lines in a table of %d rows:\n%s", rows, len(s.values), out.String())
	}
}

// TestBadFlags: errors name the flag or folder at fault.
func TestBadFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--what fig7", `"fig7": want sweeps`},
		{"sweeps", `argument "sweeps"`},
		{"--what table5 --out /dev/null/x", "/dev/null"},
	} {
		err := run(t.Context(), strings.Fields(tc.args), &bytes.Buffer{}, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.args, err, tc.want)
		}
	}
}
