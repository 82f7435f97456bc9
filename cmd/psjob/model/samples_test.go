package model

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestSparseRows(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("+1 3:0.5 9:2\n0 1:1\n-1 9:3 20:4\n"))
	_ = z.Close()
	path := write(t, "rows.gz", packed.Bytes())
	s := require.Value(LoadSparse(t.Context(), path, Share{0, 1}, dataset.KeyMap{}, false))(t)
	if got := s.Keys(); len(got) != 4 || got[0] != 1 || got[3] != 20 {
		t.Errorf("keys %v, want 1 3 9 20", got)
	}
	var c Columns
	if got := c.Of(s, []int32{0, 2}); len(got) != 3 || got[0] != 3 || got[2] != 20 {
		t.Errorf("keys of rows 0 and 2: %v, want 3 9 20", got)
	}
	columns, values, yes := s.Sample(2)
	if len(columns) != 2 || c.At(columns[0]) != 1 || c.At(columns[1]) != 2 || values[1] != 4 || yes {
		t.Errorf("row 2: columns %v values %v %v", columns, values, yes)
	}
	unit := require.Value(LoadSparse(t.Context(), path, Share{2, 3}, dataset.KeyMap{}, true))(t)
	if _, values, _ := unit.Sample(0); unit.Len() != 1 || values[0] != 0.6 || values[1] != 0.8 {
		t.Errorf("row 2 of length 1: %v", values)
	}
}

func TestShards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[data] *?") // no pattern, whatever it looks like
	require.NoError(t, os.Mkdir(dir, 0o700))
	for name, text := range map[string]string{"shard-00000.libsvm": "1 1:1\n", "shard-00001.libsvm": "1 2:1\n-1 3:1\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s, err := LoadSparse(t.Context(), dir, Share{1, 2}, dataset.KeyMap{}, false)
	if err != nil || s.Len() != 2 || s.Keys()[0] != 2 {
		t.Errorf("worker 1 has %+v, %v; want the second shard", s, err)
	}
	if _, err := LoadSparse(t.Context(), dir, Share{0, 3}, dataset.KeyMap{}, false); err == nil || !strings.Contains(err.Error(), "2 files") {
		t.Errorf("3 workers, 2 shards: %v", err)
	}
}

func TestBadFiles(t *testing.T) {
	click := strings.Repeat("\t1", ClickNumbers) + strings.Repeat("\tab", ClickCategories) + "\n"
	idx := []byte{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7}
	labels := []byte{0, 0, 8, 1, 0, 0, 0, 2, 1, 1}
	loadSparse := func(content string) func(*testing.T) error {
		return func(t *testing.T) error {
			_, err := LoadSparse(t.Context(), write(t, "f", []byte(content)), Share{0, 1}, dataset.KeyMap{}, false)
			return err
		}
	}
	loadClicks := func(content string) func(*testing.T) error {
		return func(t *testing.T) error {
			_, err := LoadClicks(t.Context(), write(t, "f", []byte(content)), Share{0, 1}, dataset.KeyMap{}, 10)
			return err
		}
	}
	loadImages := func(a, b []byte) func(*testing.T) error {
		return func(t *testing.T) error {
			_, err := LoadImages(write(t, "images", a), write(t, "labels", b), Share{0, 1})
			return err
		}
	}
	for name, tc := range map[string]struct {
		load func(*testing.T) error
		want string
	}{
		"libsvm, bad value":   {loadSparse("1 1:1\n1 2:x\n"), "line 2"},
		"libsvm, empty":       {loadSparse(""), "no rows"},
		"clicks, empty":       {loadClicks("\n"), "0 rows"},
		"clicks, columns":     {loadClicks("1" + click + "0\t1\n"), "line 2: 2 columns"},
		"clicks, label":       {loadClicks("2" + click), "line 1: label"},
		"clicks, number":      {loadClicks("1" + strings.Replace(click, "1", "x", 1)), "line 1: column 2"},
		"images, other file":  {loadImages([]byte("hello, this is text"), labels), "want an idx file"},
		"images, header":      {loadImages(idx[:9], labels), "within its idx header"},
		"images, cut":         {loadImages(idx, labels), "image 2 of 2"},
		"images, label count": {loadImages(idx, labels[:7]), "idx header"},
		"images, huge":        {loadImages([]byte{0, 0, 8, 3, 0, 0, 0, 2, 255, 255, 255, 255, 255, 255, 255, 255}, labels), "want 1 to"},
		"images, class":       {loadImages(append(idx, 8), []byte{0, 0, 8, 1, 0, 0, 0, 2, 1, 11}), "label 2 is 11"},
		"no such file": {func(t *testing.T) error {
			_, err := LoadSparse(t.Context(), "/nonexistent", Share{0, 1}, dataset.KeyMap{}, false)
			return err
		}, "/nonexistent"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.load(t); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
