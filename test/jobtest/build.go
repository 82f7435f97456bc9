// Package jobtest gives tests what they run jobs with (package job): the module's own
// programs, built, and placements of psjob's keys.
package jobtest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// Build builds a program of this module, such as cmd/psjob, for the test and
// returns its path. What has not changed comes out of Go's cache, so that this
// takes about a second.
func Build(t testing.TB, folder string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(folder))
	out, err := exec.Command(require.Program(t, "go"), "build", "-o", path, "github.com/psidecar/psidecar/"+folder).CombinedOutput()
	if err != nil {
		t.Fatalf("building %s: %v\n%s", folder, err, out)
	}
	return path
}
