package page

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

const model = `
- {name: users, first: 0, last: 1599, keys-per-row: 16}
- {name: items, first: 1600, last: 2599, keys-per-row: 1, row: 1000}
- {name: bias, first: 5000, last: 5000}
- {name: dense, first: 6000, last: 6099}
- {name: theirs, first: 0, last: 9, job: "198.18.0.1:9000"}
- {name: top, first: 18446744073709551610, last: 18446744073709551615}
`

// Keys and ranges have the names that the file gives them.
func TestNames(t *testing.T) {
	m := require.Value(ParseNames([]byte(model)))(t)
	for key, want := range map[uint64]string{
		0: "users[0].0", 35: "users[2].3", 1599: "users[99].15", 1600: "items[1000]", 2599: "items[1999]",
		2600: "", 5000: "bias", 6007: "dense+7", math.MaxUint64: "top+5",
	} {
		if got := m.Key("10.0.0.1:1", key); got != want {
			t.Errorf("key %d is %q, want %q", key, got, want)
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
			t.Errorf("keys %d to %d are %q, want %q", c.first, c.last, got, c.want)
		}
	}
	if got := m.Key("198.18.0.1:9000", 3); got != "theirs+3" {
		t.Errorf("a job's own name is %q", got)
	}
	if got := m.Key("198.18.0.1:9000", 16); got != "users[1].0" {
		t.Errorf("where a job has no name of its own: %q", got)
	}
	if a, b := len(m.Ranges("10.0.0.1:1")), len(m.Ranges("")); a != 5 || b != 6 {
		t.Errorf("%d and %d ranges", a, b)
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
		if _, err := ParseNames([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A file that changes is read again; one that is damaged leaves the names.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.yaml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("- {name: a, first: 0, last: 9}")
	f := require.Value(OpenNames(path))(t)
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
