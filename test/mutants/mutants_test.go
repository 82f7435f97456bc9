package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// faults are of sign.go below, and what is wanted of each.
const faults = `# A comment.
sign/sign.go | n > 0 | n > 3 | ./sign
sign/sign.go | n < 0 | n < -3 | ./sign
sign/sign.go | return 2 | return 3 | ./sign

sign/sign.go | return | return 7 + | ./sign
sign/sign.go | return -1 | return -x | ./sign
sign/gone.go | n > 0 | n > 3 | ./sign
sign/sign.go | return -1 | return 1 | ./sign -run Nothing
`

// tree writes a module with a function, a test of it and faults.
func tree(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module tiny\n\ngo 1.26\n",
		"sign/sign.go":      "package sign\n\nfunc Of(n int) int {\n\tif n > 0 {\n\t\treturn 1\n\t}\n\tif n < 0 {\n\t\treturn -1\n\t}\n\treturn 0\n}\n",
		"sign/sign_test.go": "package sign\n\nimport \"testing\"\n\nfunc TestOf(t *testing.T) {\n\tif Of(3) != 1 || Of(0) != 0 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n",
		list:                faults,
	} {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

func TestFaults(t *testing.T) {
	root := tree(t)
	var out strings.Builder
	ok, err := run(t.Context(), &out, root, options{})
	if err != nil || ok {
		t.Fatalf("run: %v, %v; want false, as not all are caught", ok, err)
	}
	rest := out.String()
	for _, want := range []string{
		"  1  caught", "(TestOf)", "  2  survived", "  3  does not apply", "there 0 times", "  4  does not apply", "there 3 times",
		"  5  does not compile", "undefined: x", "  6  does not apply", "no such file", "  7  survived", "no tests to run", "1 passed, 6 failed\n",
	} {
		var found bool
		if _, rest, found = strings.Cut(rest, want); !found {
			t.Fatalf("no %q, or not in its place:\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "sign/sign.go"))
	if err != nil || !strings.Contains(string(text), "n > 0") || !strings.Contains(string(text), "n < 0") {
		t.Errorf("the tree itself was changed: %v\n%s", err, text)
	}
}

func TestOptions(t *testing.T) {
	root := tree(t)
	for _, c := range []struct {
		options
		ok   bool
		last string
	}{
		{options{only: "1"}, true, "1 passed, 0 failed"},
		{options{only: "2,3"}, false, "0 passed, 2 failed"},
		{options{only: "1,2", without: true}, true, "2 passed, 0 failed"},
		{options{only: "9"}, false, "0 passed, 0 failed"},
		{options{only: "2", show: true}, true, "  2  sign/sign.go: n < 0 -> n < -3 | ./sign"},
	} {
		var out strings.Builder
		ok, err := run(t.Context(), &out, root, c.options)
		if err != nil || ok != c.ok || strings.TrimSpace(lastLine(out.String())) != strings.TrimSpace(c.last) {
			t.Errorf("%+v: %v, %v, want %v and %q:\n%s", c.options, ok, err, c.ok, c.last, out.String())
		}
	}
}

func TestMalformedLines(t *testing.T) {
	for _, line := range []string{"a.go | x | y", "a.go | x | y | ./a | z", " | x | y | ./a", "a.go |  | y | ./a"} {
		if _, err := parse(line); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}
