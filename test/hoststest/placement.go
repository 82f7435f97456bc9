package hoststest

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

// JobKeys returns psjob's keys of the ids from 0 on, in ascending order.
func JobKeys(t testing.TB, ids int) (all []uint64) {
	t.Helper()
	m := require.Value(dataset.ParseKeyMap("spread"))(t) // psjob's default
	for id := range ids {
		key := require.Value(m.Key(uint64(id)))(t)
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// WritePlacement writes a placement of keys, in ascending order, on machines, one
// owner a key, and returns its file. Servers has the rank of each machine's server.
func WritePlacement(t testing.TB, dir string, servers []int, keys []uint64, owners []int32) (file string) {
	t.Helper()
	run := plan.PlacedRun{First: keys[0], Last: keys[len(keys)-1], Keys: keys, Owners: owners}
	file = filepath.Join(dir, "placement.json")
	require.NoError(t, plan.WritePlacementFile(file, &plan.Placement{K: len(servers), Server: servers, Runs: []plan.PlacedRun{run}}))
	return file
}
