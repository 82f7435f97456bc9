package model

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
)

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSparseRows(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("+1 3:0.5 9:2\n0 1:1\n-1 9:3 20:4\n"))
	_ = z.Close()
	path := write(t, "rows.gz", packed.Bytes())
	s, err := LoadSparse(t.Context(), path, Share{0, 1}, dataset.KeyMap{}, false)
	if err != nil {
		t.Fatal(err)
	}
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
	unit, err := LoadSparse(t.Context(), path, Share{2, 3}, dataset.KeyMap{}, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, values, _ := unit.Sample(0); unit.Len() != 1 || values[0] != 0.6 || values[1] != 0.8 {
		t.Errorf("row 2 of length 1: %v", values)
	}
}

func TestShards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[data] *?") // no pattern, whatever it looks like
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"shard-00000.libsvm": "1 1:1\n", "shard-00001.libsvm": "1 2:1\n-1 3:1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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

func TestSentences(t *testing.T) {
	path := write(t, "pairs", []byte("3 1\t2 2 4\n\n1\t4\n2 3 1\t1\n"))
	s, err := LoadSentences(t.Context(), path, Share{0, 2}, dataset.KeyMap{}, 5)
	if err != nil {
		t.Fatal(err)
	}
	// Ids of sources are 1 + the word, of targets 6 + it; the mark is target 0.
	if got, want := fmt.Sprint(s.Sparse().Keys()), "[2 3 4 6 7 8 10]"; s.Len() != 2 || got != want {
		t.Fatalf("%d pairs, keys %s, want 2 and %s", s.Len(), got, want)
	}
	columns, _, _ := s.Sparse().Sample(0)
	var ids []uint64
	for _, c := range columns {
		ids = append(ids, s.Sparse().Keys()[c])
	}
	if got, want := fmt.Sprint(ids), "[4 2 6 8 8 10]"; got != want {
		t.Errorf("the first pair is %s, want %s", got, want)
	}
	if got := s.Pair(1); fmt.Sprint(got) != "{[2 3 1] [1]}" || s.NextID() != 11 {
		t.Errorf("the second pair is %v, the next id %d", got, s.NextID())
	}
	for word, want := range []bool{true, true, true, false, true} {
		if _, ok := s.Column(uint32(word)); ok != want {
			t.Errorf("word %d has a column: %v", word, ok)
		}
	}
}

func TestBadSentences(t *testing.T) {
	for text, want := range map[string]string{
		"1 2\n": "no tab", "1\t5\n": "target: word \"5\": want a number from 1 to 4", "0\t1\n": "source: word \"0\"",
		"1\tx\n": "word \"x\"", "\t1\n": "source: 0 words", "1\t\n": "target: 0 words", "\n": "too few",
		"1\t1" + strings.Repeat(" 1", 200) + "\n": "201 words: want 1 to 200",
	} {
		_, err := LoadSentences(t.Context(), write(t, "pairs", []byte(text)), Share{0, 1}, dataset.KeyMap{}, 5)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pairs") {
			t.Errorf("%.20q: got %v, want %q", text, err, want)
		}
	}
}
