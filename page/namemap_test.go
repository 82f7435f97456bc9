package page

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const model = `
- {name: users, first: 0, last: 1599, keys-per-row: 16}
- {name: items, first: 1600, last: 2599, keys-per-row: 1, row: 1000}
- {name: bias, first: 5000, last: 5000}
- {name: dense, first: 6000, last: 6099}
- {name: theirs, first: 0, last: 9, job: "198.18.0.1:9000"}
- {name: top, first: 18446744073709551610, last: 18446744073709551615}
`

const table = `name,first,last,keys-per-row,row,job
users,0,1599,16,,
items,1600,2599,1,1000,
bias,5000,5000,,,
dense,6000,6099,,,
theirs,0,9,,,198.18.0.1:9000
top,18446744073709551610,18446744073709551615,0,0,
`

// Keys and ranges have the names that YAML and CSV give them.
func TestNames(t *testing.T) {
	for file, text := range map[string]string{"model.yaml": model, "model.CSV": table} {
		m, err := ParseNames(file, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range map[uint64]string{
			0: "users[0].0", 35: "users[2].3", 1599: "users[99].15", 1600: "items[1000]", 2599: "items[1999]",
			2600: "", 5000: "bias", 6007: "dense+7", math.MaxUint64: "top+5",
		} {
			if got := m.Key("10.0.0.1:1", key); got != want {
				t.Errorf("%s: key %d is %q, want %q", file, key, got, want)
			}
		}
		for _, c := range []struct {
			first, last uint64
			want        string
		}{
			{0, 1599, "users[0..99]"}, {16, 20, "users[1]"}, {16, 47, "users[1..2]"}, {6000, 6099, "dense"}, {6001, 6003, "dense+1..3"},
			{1500, 1700, "users, items"}, {2600, 4000, ""}, {0, math.MaxUint64, "users, items, bias and 2 more"}, {5000, 5000, "bias"},
		} {
			if got := m.Keys("10.0.0.1:1", c.first, c.last); got != c.want {
				t.Errorf("%s: keys %d to %d are %q, want %q", file, c.first, c.last, got, c.want)
			}
		}
		if got := m.Key("198.18.0.1:9000", 3); got != "theirs+3" {
			t.Errorf("%s: a job's own name is %q", file, got)
		}
		if got := m.Key("198.18.0.1:9000", 16); got != "users[1].0" {
			t.Errorf("%s: where a job has no name of its own: %q", file, got)
		}
		if a, b := len(m.Ranges("10.0.0.1:1")), len(m.Ranges("")); a != 5 || b != 6 {
			t.Errorf("%s: %d and %d ranges", file, a, b)
		}
	}
	var none *NameMap
	if none.Key("j", 1)+none.Keys("j", 1, 2) != "" || len(none.Ranges("")) != 0 {
		t.Error("no map names keys")
	}
}

// Faults of a file are named.
func TestWrongNames(t *testing.T) {
	for text, want := range map[string]string{
		"- {name: a, first: 0, last: 9}\n- {name: b, first: 9, last: 12}": "a and b overlap at key 9",
		"- {name: a, first: 3, last: 2}":                                  "below the first",
		"- {first: 3, last: 4}":                                           "want a name",
		"- {name: a, frist: 3}":                                           "frist",
		"name: a":                                                         "cannot unmarshal",
	} {
		if _, err := ParseNames("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"name,first,last\na,1,x\n": "line 2, last", "name,begin\na,1\n": "begin", "name,first,last\na,1\n": "wrong number of fields",
	} {
		if _, err := ParseNames("x.csv", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A file that changes is read again; one that is damaged leaves the names.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("- {name: a, first: 0, last: 9}")
	f, err := OpenNames(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"- {name: other, first: 0, last: 9}", "damaged: ["} {
		write(text)
		f.looked = time.Time{}
		if got := f.Map().Key("", 1); got != "other+1" {
			t.Errorf("after %q key 1 is %q", text, got)
		}
	}
	if _, err := OpenNames(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
	var none *NameFile
	if none.Map() != nil {
		t.Error("no file has names")
	}
}

// Names that are set hold until the file changes after that; where there is no
// file, until others are set.
func TestSet(t *testing.T) {
	set, err := NewNameMap([]NamedRange{{Name: "set", Last: 9}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "names.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("- {name: a, first: 0, last: 9}")
	f, err := OpenNames(path)
	if err != nil {
		t.Fatal(err)
	}
	write("- {name: before, first: 0, last: 9}") // and has not been looked at since
	f.Set(set)
	for _, want := range []string{"set+1", "set+1", "after+1"} {
		if want == "after+1" {
			write("- {name: after, first: 0, last: 99}")
		}
		f.looked = time.Time{}
		if got := f.Map().Key("", 1); got != want {
			t.Errorf("key 1 is %q, want %q", got, want)
		}
	}
	none, err := OpenNames("")
	if err != nil || none.Map().Key("", 1) != "" {
		t.Fatalf("without a file: %q, %v", none.Map().Key("", 1), err)
	}
	none.Set(set)
	if got := none.Map().Key("", 1); got != "set+1" {
		t.Errorf("without a file key 1 is %q", got)
	}
}
