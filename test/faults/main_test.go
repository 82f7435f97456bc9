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

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"forge": forge, "relay": relayTask}, goleak.Cleanup(func(code int) {
		os.RemoveAll(built.folder)
		os.Exit(code)
	}))
}

// nobody is the user that the proxies run as.
const nobody = 65534

// programs are what all tests run, in a folder that everybody may read.
type programs struct{ folder, psidecar, psjob string }

var (
	built     programs
	buildOnce sync.Once
)

// build returns the programs, which are built once.
func build(t *testing.T) programs {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	buildOnce.Do(func() {
		dir := require.Value(os.MkdirTemp("", "psd-faults-"))(t)
		built.folder = dir
		require.NoError(t, os.Chmod(dir, 0o755))
		for name, path := range map[string]*string{"psidecar": &built.psidecar, "psjob": &built.psjob} {
			*path = filepath.Join(dir, name)
			program := require.Value(os.ReadFile(hoststest.BuildJob(t, "cmd/"+name)))(t)
			require.NoError(t, os.WriteFile(*path, program, 0o755))
		}
	})
	if built.psjob == "" {
		t.Fatal("the programs were not built, as another test says")
	}
	return built
}

// folder makes one that everybody can reach, unlike those of the testing
// package.
func folder(t *testing.T) string {
	t.Helper()
	dir := require.Value(os.MkdirTemp("", "psd-faults-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}
