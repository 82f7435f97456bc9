package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestReadmeIsCurrent: the chart's README.md is the one that its values give.
func TestReadmeIsCurrent(t *testing.T) {
	if err := run([]string{"--chart", "../chart", "--check"}); err != nil {
		t.Error(err)
	}
}

const smallSchema = `{"definitions": {"port": {"type": "integer", "minimum": 1, "maximum": 9}}, "properties": {
	"global": {"type": "object"},
	"mode": {"enum": ["", "a"]},
	"part": {"type": "object", "properties": {"port": {"$ref": "#/definitions/port"}, "names": {"type": "object", "properties": {"x": {"type": "string"}}}}},
	"share": {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {"type": "string"}]},
	"args": {"type": "array", "items": {"type": "string"}}}}`

const smallValues = `# what a|b
# is
mode: ""
# The part.
part:
  # where it
  # listens
  port: 3
  names: {x: ""} # of it

# What is left.

# of all
share: 0
# further
args: []
`

// writeChart makes a folder with the two files of a chart that are read.
func writeChart(t *testing.T, values, schema string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"values.yaml": values, "values.schema.json": schema} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// TestTables reads a small chart that has every kind of value and comment.
func TestTables(t *testing.T) {
	text := require.Value(readme(writeChart(t, smallValues, smallSchema)))(t)
	got, _ := strings.CutPrefix(string(text), intro)
	want := "\n| value | type | default | what it is |\n| --- | --- | --- | --- |\n" +
		"| `mode` | `\"\"`, `a` | `\"\"` | what a\\|b is |\n" +
		"\nThe part.\n\n| value | type | default | what it is |\n| --- | --- | --- | --- |\n" +
		"| `part.port` | integer, 1 to 9 | `3` | where it listens |\n" +
		"| `part.names` | map | `{x: \"\"}` | of it |\n" +
		"\nWhat is left.\n\n| value | type | default | what it is |\n| --- | --- | --- | --- |\n" +
		"| `share` | number, 0 to below 1 | `0` | of all |\n" +
		"| `args` | list of text | `[]` | further |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestWhatTheTablesLack: values about which nothing is said, or that only one of the two files
// has, are errors that name them.
func TestWhatTheTablesLack(t *testing.T) {
	for _, tc := range []struct{ name, values, schema, want string }{
		{"no comment", strings.Replace(smallValues, "# further\n", "", 1), smallSchema, "says nothing of args"},
		{"no comment in a block", strings.Replace(smallValues, "  # where it\n  # listens\n", "", 1), smallSchema, "says nothing of part.port"},
		{"a comment without a line above it", strings.Replace(smallValues, "of it\n\n", "of it\n", 1), smallSchema, "the comment below part"},
		{"not in the schema", smallValues + "# new\nmore: 1\n", smallSchema, "does not know more"},
		{"not in the values", strings.Replace(smallValues, "# of all\nshare: 0\n", "", 1), smallSchema, "has no share"},
		{"a reference to nothing", smallValues, strings.Replace(smallSchema, "definitions/port", "definitions/ports", 1), "#/definitions/ports"},
		{"no mapping", "- a\n", smallSchema, "want a mapping"},
		{"no YAML", "\t:", smallSchema, "values.yaml: "},
		{"no JSON", smallValues, "{", "values.schema.json: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := readme(writeChart(t, tc.values, tc.schema))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestCheck: --check writes nothing, and its error says how to.
func TestCheck(t *testing.T) {
	dir := writeChart(t, smallValues, smallSchema)
	path := filepath.Join(dir, "README.md")
	if err := run([]string{"--chart", dir, "--check"}); err == nil {
		t.Error("no README.md, and no error")
	}
	require.NoError(t, run([]string{"--chart", dir}))
	if err := run([]string{"--chart", dir, "--check"}); err != nil {
		t.Errorf("what was written is not what is checked: %v", err)
	}
	require.NoError(t, os.WriteFile(path, []byte("# Old\n"), 0o600))
	if err := run([]string{"--chart", dir, "--check"}); err == nil || !strings.Contains(err.Error(), "go run ./deploy/chartdoc writes it") {
		t.Errorf("an old README.md: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "# Old\n" {
		t.Errorf("--check has written %q (%v)", text, err)
	}
}
