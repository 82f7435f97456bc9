package aggregate

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func exampleRecord(t testing.TB) (path string, h *header, sum []byte) {
	h = &header{
		Carrier: keptPush{9, 1, 2, 3, 1<<64 - 1},
		Carried: []keptPush{{11, 1, 2, 4, 5}},
		Given:   []keptGift{{keptPush{13, 1, 2, 5, 6}, []int{0, 2, 1}}},
	}
	path, sum = filepath.Join(t.TempDir(), "new", "1.sum"), []byte{1, 2, 3, 4}
	if err := writeRecord(path, h, sum); err != nil {
		t.Fatal(err)
	}
	return path, h, sum
}

func TestRecordsAreReadAsWritten(t *testing.T) {
	path, want, sum := exampleRecord(t)
	r := &record{path: path, refs: 3}
	for i, marks := range [][]byte{{0, 0, 0}, {0, 1, 0}, {1, 1, 0}} {
		if i > 0 {
			if err := (reference{r, []int{1, 0}[i-1]}).release(); err != nil {
				t.Fatal(err)
			}
		}
		h, got, answered, err := readRecord(path)
		if err != nil || !slices.Equal(got, sum) || !slices.Equal(answered, marks) || r.isOver() != (marks[0] != 0) {
			t.Fatalf("sum %v, answered %v, error %v; want %v, %v", got, answered, err, sum, marks)
		}
		if diff := cmp.Diff(want, h); diff != "" {
			t.Fatal(diff)
		}
	}
	if err := (reference{r, 2}).release(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) || !r.isOver() {
		t.Errorf("the record of answered pushes is still there: %v", err)
	}
}

// A record that was cut by a kill, or changed, is none.
func TestDamagedRecords(t *testing.T) {
	path, _, _ := exampleRecord(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte, what string, at int) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := readRecord(path); !errors.Is(err, errRecord) {
			t.Errorf("%s at %d: %v", what, at, err)
		}
	}
	for i := range whole {
		try(whole[:i], "cut", i)
		// Marks of answers are what they are.
		if i < marksAt || i >= marksAt+3 {
			b := slices.Clone(whole)
			b[i] ^= 0x41
			try(b, "changed", i)
		}
	}
}

func TestRunsOfKeys(t *testing.T) {
	for n := range 1 << 6 {
		var given []bool
		for i := range 6 {
			given = append(given, n>>i&1 != 0)
		}
		if got := ofRuns(runsOf(given)); !slices.Equal(got, given) {
			t.Errorf("%v became %v", given, got)
		}
	}
	if ofRuns([]int{1, -1}) != nil || ofRuns([]int{1 << 40}) != nil {
		t.Error("lengths that cannot be are taken")
	}
}

// Whatever a file has, reading it ends.
func FuzzRecord(f *testing.F) {
	path, _, _ := exampleRecord(f)
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, sum, answered, err := parseRecord(b)
		if err != nil {
			return
		}
		g := &group{opts: &Options{now: time.Now, manual: true}, pairs: map[int32]*pair{}}
		g.restore(&record{path: filepath.Join(t.TempDir(), "1.sum")}, h, len(sum), answered)
	})
}
