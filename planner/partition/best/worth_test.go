package best

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

func TestTransposeSome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, _ := drawHypergraph(t, 2)
		if h.nets == 0 {
			return
		}
		wanted := rapid.SliceOf(rapid.Uint32Range(0, uint32(h.nets-1))).Draw(t, "wanted")
		wholeStart, whole, err := h.transpose(t.Context())
		require.NoError(t, err)
		start, some, err := h.transposeSome(t.Context(), wanted)
		require.NoError(t, err)
		for e := range h.nets {
			var want []int32
			if slices.Contains(wanted, uint32(e)) {
				want = whole[wholeStart[e]:wholeStart[e+1]]
			}
			if got := some[start[e]:start[e+1]]; !slices.Equal(got, want) {
				t.Fatalf("net %d has vertices %v, want %v", e, got, want)
			}
		}
	})
}

// TestSavedByClusters compares the estimate with what clusters then save.
func TestSavedByClusters(t *testing.T) {
	for name, shape := range map[string]graphs.Random{
		"little": {Samples: 10_000, Params: 200_000, Degree: 30, Exponent: 1, Topics: 50, TopicShare: 0.7, Seed: 2},
		"some":   {Samples: 10_000, Params: 20_000, Degree: 30, Exponent: 1, Topics: 200, TopicShare: 0.95, Seed: 2},
		"much":   {Samples: 10_000, Params: 4_000, Degree: 30, Exponent: 0, Topics: 400, TopicShare: 1, Seed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := require.Value(shape.Build(t.Context()))(t)
			h, _, err := reduce(t.Context(), g, partition.Options{K: 4})
			require.NoError(t, err)
			estimate := require.Value(h.savedByClusters(t.Context(), 100))(t)
			team := newTeam(1)
			defer team.close()
			label, clusters, err := h.cluster(t.Context(), team, 100, int(float64(h.vertices())/shrink))
			require.NoError(t, err)
			pins := len(h.pins)
			coarser := require.Value(h.contract(t.Context(), label, clusters))(t)
			saved := 1 - float64(len(coarser.pins))/float64(pins)
			t.Logf("saved %.3f of the pins, estimated %.3f", saved, estimate)
			if estimate > 1.8*saved || estimate < 0.7*saved {
				t.Errorf("%.3f of the pins are saved, the estimate is %.3f", saved, estimate)
			}
		})
	}
}
