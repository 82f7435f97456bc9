// Package faults breaks what a job runs through while it trains: on each of
// four hosts an agent has the job's connects intercepted and a proxy without
// privileges carries them, a planner takes in what the agents say, and each of
// these is restarted as a service manager would when it ends. The job counts
// with PS_RESEND: it ends only when the sums on all servers are exact.
//
// fleet_test.go starts all that, service_test.go is one process of it; the
// other files have one kind of fault each.
package faults

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/test/job"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// nobody is who the proxies run as.
const nobody = 65534

// programs are what all tests run, in a folder that everybody may read.
type programs struct{ psidecar, psjob string }

var (
	buildOnce sync.Once
	built     [2][]byte
)

// build returns the programs, built once and copied for each test.
func build(t *testing.T) programs {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	names := [2]string{"cmd/psidecar", "cmd/psjob"}
	buildOnce.Do(func() {
		for i, name := range names {
			var err error
			if built[i], err = os.ReadFile(job.Build(t, name)); err != nil {
				t.Fatal(err)
			}
		}
	})
	dir := folder(t)
	var paths [2]string
	for i, name := range names {
		paths[i] = filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(paths[i], built[i], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return programs{paths[0], paths[1]}
}

// folder makes one that everybody can reach, unlike those of the testing
// package.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "psd-faults-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
