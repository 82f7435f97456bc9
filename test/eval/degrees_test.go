package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

// TestSummarizeDegrees: of a hundred nodes 98 are of degree 1, one of 3 and one of 99, so the
// mean is 2 and the largest one has half of the edges.
func TestSummarizeDegrees(t *testing.T) {
	degrees := []int{99, 3}
	for range 98 {
		degrees = append(degrees, 1)
	}
	if got, want := summarize(degrees), (spreadOf{mean: 2, below: 0.98, heavy: 0.495, median: 1, high: 99, largest: 99}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := fmt.Sprint(histogram(append(degrees, 0))), "[{1 98} {2 1} {64 1}]"; got != want {
		t.Errorf("histogram %s, want %s", got, want)
	}
}

// writeSet writes a compressed libsvm file with n rows of two classes. Row i has the features
// 1+i%5 and 100+i%7.
func writeSet(t *testing.T, dir, name string, n int) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := xz.NewWriter(f)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		fmt.Fprintf(w, "%d %d:1 %d:2\n", i%2, 1+i%5, 100+i%7)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGraphOfFirstRows asks for all rows, some of them, and more than there are.
func TestGraphOfFirstRows(t *testing.T) {
	e := &evaluation{datasets: t.TempDir()}
	writeSet(t, e.datasets, "some.libsvm.xz", 50)
	for rows, want := range map[int]int{0: 50, 3: 3, 50: 50, 70: 50} {
		g, err := e.graphOf(t.Context(), "some", rows)
		if err != nil {
			t.Fatal(err)
		}
		if g.Samples() != want || g.Edges() != int64(2*want) {
			t.Errorf("the first %d rows: %d samples, %d edges", rows, g.Samples(), g.Edges())
		}
	}
	if _, err := e.graphOf(t.Context(), "other", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
}

// TestSmallParts runs the planner's parts on small sets: each writes its table and plot.
func TestSmallParts(t *testing.T) {
	data := t.TempDir()
	for _, name := range []string{"rcv1-excerpt", "criteo-80k", "soc-slashdot"} {
		writeSet(t, data, name+".libsvm.xz", 400)
	}
	for part, title := range map[string]string{"degrees": "Node degrees", "machines": "DWW21 Fig. 10: soc-slashdot for soc-LiveJournal (400 samples", "bins": "DW23 Fig. 5: rcv1-excerpt hashed (100 samples"} {
		var out, log bytes.Buffer
		dir := t.TempDir()
		if err := run(t.Context(), []string{"--what", part, "--quick", "--out", dir, "--datasets", data}, &out, &log); err != nil {
			t.Fatalf("%s: %v", part, err)
		}
		if !strings.Contains(out.String(), title) {
			t.Errorf("%s wrote\n%s", part, out.String())
		}
		if info, err := os.Stat(filepath.Join(dir, part+".png")); err != nil || info.Size() == 0 {
			t.Errorf("%s: plot: %v", part, err)
		}
	}
}

// TestSplitLeavesNothing: files that only a run reads are left neither beside the plots nor
// anywhere else.
func TestSplitLeavesNothing(t *testing.T) {
	data, out, temporary := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	writeSet(t, data, "some.libsvm.xz", 50)
	e := &evaluation{dir: out, datasets: data, scratch: t.TempDir()}
	train, test, err := split(e, "some.libsvm.xz")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{train: 40, test: 10} {
		text, err := os.ReadFile(path)
		if err != nil || bytes.Count(text, []byte("\n")) != want {
			t.Errorf("%s: %v, %d lines, want %d", path, err, bytes.Count(text, []byte("\n")), want)
		}
	}
	writeSet(t, data, "criteo-80k.libsvm.xz", 400)
	writeSet(t, data, "soc-slashdot.libsvm.xz", 400)
	if err := run(t.Context(), []string{"--what", "machines", "--quick", "--out", out, "--datasets", data}, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{out, temporary} {
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range left {
			if ext := filepath.Ext(path); ext != ".png" && ext != ".svg" {
				t.Errorf("%s is left", path)
			}
		}
	}
}
