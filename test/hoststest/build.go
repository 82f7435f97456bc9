package hoststest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// BuildJob builds a program of this module, such as cmd/psjob, for the test and
// returns its path. What has not changed comes out of Go's cache, so that this
// takes about a second.
func BuildJob(t testing.TB, folder string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(folder))
	out, err := exec.Command(require.Program(t, "go"), "build", "-o", path, "github.com/psidecar/psidecar/"+folder).CombinedOutput()
	if err != nil {
		t.Fatalf("building %s: %v\n%s", folder, err, out)
	}
	return path
}

// WhileTraining returns a file for psjob's --count-while, and what removes it, so that a job makes
// steps for as long as a test has something to do to it.
func WhileTraining(t testing.TB) (path string, end func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "while")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
