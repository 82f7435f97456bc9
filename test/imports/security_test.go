package imports

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

var (
	named   = regexp.MustCompile("`(Test[A-Za-z]+)`")
	defined = regexp.MustCompile(`(?m)^func (Test[A-Za-z]+)\(`)
)

// The tests that deploy/SECURITY.md names for its promises exist.
func TestPromisesHaveTests(t *testing.T) {
	page, err := os.ReadFile("../../deploy/SECURITY.md")
	require.NoError(t, err)
	there := map[string]bool{}
	err = filepath.WalkDir("../..", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range defined.FindAllSubmatch(text, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	require.NoError(t, err)
	names := named.FindAllSubmatch(page, -1)
	if len(names) < 40 {
		t.Errorf("only %d tests are named", len(names))
	}
	for _, m := range names {
		if !there[string(m[1])] {
			t.Errorf("%s does not exist", m[1])
		}
	}
}
