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

	"github.com/psidecar/psidecar/test/require"
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
	f := require.Value(os.Create(filepath.Join(dir, name)))(t)
	defer f.Close()
	w := require.Value(xz.NewWriter(f))(t)
	for i := range n {
		fmt.Fprintf(w, "%d %d:1 %d:2\n", i%2, 1+i%5, 100+i%7)
	}
	require.NoError(t, w.Close())
}

// TestGraphOfFirstRows asks for all rows, some of them, and more than there are.
func TestGraphOfFirstRows(t *testing.T) {
	e := &evaluation{datasets: t.TempDir()}
	writeSet(t, e.datasets, "some.libsvm.xz", 50)
	for rows, want := range map[int]int{0: 50, 3: 3, 50: 50, 70: 50} {
		g := require.Value(e.graphOf(t.Context(), "some", rows))(t)
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
