package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/require"
)

// A host whose --act is taken away goes on routing the requests of a job with displaced keys: by the
// planner, or, if it has none, to refuse them.
func TestDisplacedKeysAreRoutedWithoutAct(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		displaced bool
		planner   string
	}{{false, "planner:9811"}, {true, "planner:9811"}, {true, ""}} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "job"), 0o700))
		kept := map[string]any{"job": "10.0.0.1:9000", "displaced": c.displaced, "nodes": []map[string]any{
			{"ID": 1, "Hostname": "10.0.0.1", "Port": 9000}, {"ID": 8, "Hostname": "10.0.0.1", "Port": 9001},
		}}
		require.Value(jobs.WriteKept(filepath.Join(dir, "job", "job.json"), kept))(t)
		f := Settings{MeshPort: 9814, Routing: RoutingSettings{Dir: dir, Planner: c.planner, Host: "a", Probe: true, Split: SplitAuto,
			Credentials: func() (credentials.TransportCredentials, error) { return nil, nil }}}
		o := require.Value(f.routed())(t)
		if (o != nil) != c.displaced || o != nil && o.Planner != c.planner {
			t.Errorf("keys are displaced: %v, the planner is %q: requests are routed: %+v", c.displaced, c.planner, o)
		}
	}
}
