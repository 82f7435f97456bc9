package jobs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A job is dropped twice, the second time because it has been over for long: the job that took its
// place keeps its files.
func TestAJobIsDroppedOnce(t *testing.T) {
	x := oneJob(t, Options{})
	j := x.jobs
	j.mu.Lock()
	j.drop(x)
	j.mu.Unlock()
	file := filepath.Join(x.dir, jobFile)
	require.NoError(t, os.MkdirAll(x.dir, 0o700))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	x.inUse = time.Now().Add(-2 * forgetAfter)
	j.dropEnded(x, time.Now())
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
