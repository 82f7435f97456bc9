package jobs

import (
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// A proxy that is started for no routing finds out that a job has displaced keys, and refuses the
// job's requests if nothing tells it where they are.
func TestDisplacedKeysThatAProxyHasLeft(t *testing.T) {
	for _, displaced := range []bool{false, true} {
		x := oneJob(t, Options{})
		x.displaced = displaced
		require.NoError(t, x.save())
		x.close()
		dir := x.jobs.opts.Dir
		if got := Left(dir); got != displaced {
			t.Errorf("keys are displaced: %v, and are said to be: %v", displaced, got)
		}
		y := remembered(t, x, Options{Dir: dir})
		if refused := y.failed != nil; refused != displaced || refused && !strings.Contains(y.failed.Error(), "--act") {
			t.Errorf("keys are displaced: %v, without a planner requests are refused: %v", displaced, y.failed)
		}
		if y = remembered(t, x, Options{Dir: dir, Planner: "127.0.0.1:1"}); y.failed != nil {
			t.Errorf("keys are displaced: %v, with a planner requests are refused: %v", displaced, y.failed)
		}
	}
	if Left(t.TempDir() + "/none") {
		t.Error("keys are displaced of jobs in a folder that does not exist")
	}
}
