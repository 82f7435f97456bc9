package hoststest

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/plan"
)

// JobKeys returns psjob's keys of the ids from 0 on, in ascending order.
func JobKeys(t testing.TB, ids int) (all []uint64) {
	t.Helper()
	m, err := dataset.ParseKeyMap("spread") // psjob's default
	if err != nil {
		t.Fatal(err)
	}
	for id := range ids {
		key, err := m.Key(uint64(id))
		if err != nil {
			t.Fatal(err)
		}
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
	if err := plan.WritePlacementFile(file, &plan.Placement{K: len(servers), Server: servers, Runs: []plan.PlacedRun{run}}); err != nil {
		t.Fatal(err)
	}
	return file
}
