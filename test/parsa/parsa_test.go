package parsa

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/require"
)

func drawGraph(t *rapid.T) *graph.Graph {
	n := rapid.IntRange(1, 40).Draw(t, "samples")
	drawn := make([][]uint64, n)
	for s := range drawn {
		drawn[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(1, 30), 1, 8, rapid.ID[uint64]).Draw(t, "row")
	}
	g := require.Value(graph.FromRows(drawn))(t)
	return g
}

// TestEveryChoiceIsTheCheapest compares each turn's choice with the costs of
// all samples left, counted from scratch.
func TestEveryChoiceIsTheCheapest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGraph(t)
		k := rapid.IntRange(1, 5).Draw(t, "k")
		has := make([][]uint64, k)
		samples := make([]int, g.Samples())
		for s := range samples {
			samples[s] = s
		}
		for i := range has {
			has[i] = make([]uint64, 1)
		}
		p := newPart(g, samples, has)
		machine := make([]int32, g.Samples())
		for s := range machine {
			machine[s] = -1
		}
		for turn := range samples {
			i := turn % k
			cost := make([]int, len(samples))
			least := 1 << 30
			for s := range samples {
				cost[s] = p.fresh(i, s)
				if machine[s] < 0 {
					least = min(least, cost[s])
				}
			}
			left := append([]int32(nil), machine...)
			p.assign(i, machine)
			for s := range samples {
				if machine[s] != left[s] && (left[s] >= 0 || cost[s] != least) {
					t.Fatalf("turn %d: sample %d of cost %d was chosen, the least is %d", turn, s, cost[s], least)
				}
			}
		}
	})
}
