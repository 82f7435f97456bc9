package jobs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
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
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x.inUse = time.Now().Add(-2 * forgetAfter)
	j.dropEnded(x, time.Now())
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
