package best

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/multilevel"
	"github.com/psidecar/psidecar/planner/partition/twostep"
	"github.com/psidecar/psidecar/test/partitiontest"
	"github.com/psidecar/psidecar/test/require"
)

// On small graphs no algorithm of the papers' does better, whatever must hold.
func TestSmallGraphs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 24, 24)
		o := partitiontest.Options(t, g, 4)
		a, err := Partition(t.Context(), g, o)
		if err == nil {
			err = partition.Check(g, a, o)
		}
		for _, f := range []partition.Partitioner{twostep.TSH1, twostep.TSH2, multilevel.MBP, twostep.DPPA} {
			b, failed := f(t.Context(), g, o)
			switch {
			case failed != nil || partition.Check(g, b, o) != nil:
			case err != nil:
				t.Fatalf("another algorithm has an answer: %v", err)
			case slices.Max(partition.Loads(g, b, o)) < slices.Max(partition.Loads(g, a, o)):
				t.Errorf("the busiest machine moves %v, another algorithm's %v", slices.Max(partition.Loads(g, a, o)), slices.Max(partition.Loads(g, b, o)))
			}
		}
	})
}

// Two groups of samples that share nothing, where no block has room for one more:
// annealing, which moves one sample at a time, never got there.
func TestSmallGroupsAreTold(t *testing.T) {
	for _, size := range []int{3, 5, 10} {
		var rows [][]uint64
		for i := range size {
			for group := range uint64(2) {
				first := group * 1000
				rows = append(rows, []uint64{first + uint64(i), first + uint64((i+1)%size) + uint64(size)*uint64(i/size), first + 500})
			}
		}
		g := require.Value(graph.FromRows(rows))(t)
		o := partition.Options{K: 2, Seed: 1}
		a := require.Value(Partition(t.Context(), g, o))(t)
		if most := slices.Max(partition.Loads(g, a, o)); most != 0 {
			t.Errorf("two groups of %d samples: the busiest machine moves %v, want nothing", size, most)
		}
	}
}

// Where nothing is found the error is one, of this algorithm's, and not one of each
// that was asked.
func TestSmallAndInfeasible(t *testing.T) {
	g, err := graph.FromRows([][]uint64{{1, 2, 3, 4}, {1, 5, 6, 7}, {2, 3, 8, 9}, {4, 6, 7, 9}, {1, 3, 5, 8}, {2, 5, 7, 9}})
	require.NoError(t, err)
	_, err = Partition(t.Context(), g, partition.Options{K: 2, Seed: 1, Theta: 5})
	if err == nil || !strings.HasPrefix(err.Error(), "no assignment found in which each machine uses parameters of weight theta = 5 or less") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}
