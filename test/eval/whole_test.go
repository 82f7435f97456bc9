package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/eval/report"
	"github.com/psidecar/psidecar/test/require"
)

// TestReportGoesOn: what was run is not run again in the same way, what fails or is interrupted
// is, and the report says why a part is missing.
func TestReportGoesOn(t *testing.T) {
	e := &evaluation{dir: t.TempDir(), out: &bytes.Buffer{}, log: &bytes.Buffer{}, quick: true}
	runs := map[string]int{}
	var broken error
	some := []part{
		{"theorem", func(_ context.Context, e *evaluation) error {
			runs["theorem"]++
			_, err := e.out.Write([]byte("a table\n"))
			return err
		}},
		{"slim", func(_ context.Context, e *evaluation) error {
			runs["slim"]++
			_, err := e.out.Write([]byte("half of"))
			return errors.Join(broken, err)
		}},
	}
	// Part of the output is written before it fails, and must not count as a table.
	broken = errors.New("no pictures")
	if err := e.reported(t.Context(), some, false); err == nil || !strings.Contains(err.Error(), "slim: no pictures") {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(filepath.Join(e.dir, "index.md"))
	if err != nil || !strings.Contains(string(text), "There is none: it failed: no pictures") || !strings.Contains(string(text), "a table") {
		t.Errorf("%v:\n%s", err, text)
	}
	// The first round runs the failed part again and only that; the second one runs nothing.
	broken = nil
	for range 2 {
		require.NoError(t, e.reported(t.Context(), some, false))
	}
	if runs["theorem"] != 1 || runs["slim"] != 2 {
		t.Errorf("ran %v", runs)
	}
	// What a quick run has found is no answer for a full one.
	e.quick = false
	require.NoError(t, e.reported(t.Context(), some, false))
	require.NoError(t, e.reported(t.Context(), some[:1], true))
	if runs["theorem"] != 3 || runs["slim"] != 3 {
		t.Errorf("not quick and again it ran %v", runs)
	}
}

// TestReportNamesParts: the parts that the report's papers and headlines name are there, with a
// guess of how long they take.
func TestReportNamesParts(t *testing.T) {
	known := map[string]bool{}
	for _, p := range parts() {
		known[p.name] = true
		if g := guesses[p.name]; g[0] == 0 || g[1] < g[0] {
			t.Errorf("%s takes %v", p.name, g)
		}
	}
	for _, p := range report.Papers() {
		for _, i := range p.Items {
			if i.Part != "" && !known[i.Part] {
				t.Errorf("%s of %s: there is no part %s", i.Name, p.Name, i.Part)
			}
			for _, c := range i.Compared {
				if !known[c.Ours.Part] {
					t.Errorf("%s of %s, %s: there is no part %s", i.Name, p.Name, c.Claim, c.Ours.Part)
				}
			}
		}
	}
	for _, h := range report.Headlines() {
		if h.Ours != (report.Cell{}) && !known[h.Ours.Part] {
			t.Errorf("%s: there is no part %s", h.Claim, h.Ours.Part)
		}
	}
}

// TestReportWithoutData: a part without its data or rights is no failure; the page says what is
// missing, and so does the last line. A file that is absent elsewhere is one.
func TestReportWithoutData(t *testing.T) {
	var log bytes.Buffer
	e := &evaluation{dir: t.TempDir(), datasets: t.TempDir(), out: &bytes.Buffer{}, log: &log, quick: true}
	opens := func(path string) func(context.Context, *evaluation) error {
		return func(context.Context, *evaluation) error {
			_, err := os.Open(path)
			return fmt.Errorf("a data set: %w", err)
		}
	}
	// One reason each: a file, --quick, and a folder.
	absent := []part{{"slim", opens(filepath.Join(e.datasets, "pictures.xz"))}, {"time", timeToLoss}, {"table5", table5}}
	if err := e.reported(t.Context(), absent, false); err != nil {
		t.Error(err)
	}
	text := require.Value(os.ReadFile(filepath.Join(e.dir, "index.md")))(t)
	for _, want := range []string{"There is none: no data: there is no file " + filepath.Join(e.datasets, "pictures.xz"), "There is none: --quick leaves out", "There is none: no data: the folder"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if want := "0 failed and 3 had not what they need"; !strings.Contains(log.String(), want) {
		t.Errorf("no %q in\n%s", want, log.String())
	}
	if err := e.reported(t.Context(), []part{{"slim", opens(filepath.Join(e.dir, "other"))}}, false); err == nil {
		t.Error("a file of ours is absent, and nothing failed")
	}
}
