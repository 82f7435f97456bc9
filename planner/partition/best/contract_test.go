package best

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// TestContractionKeepsCosts: an assignment of clusters costs what it costs
// their vertices. Weights are small enough not to be rounded.
func TestContractionKeepsCosts(t *testing.T) {
	const k = 4
	rapid.Check(t, func(t *rapid.T) {
		h, _ := drawHypergraph(t, k)
		for _, w := range h.netWeights() {
			if rounded(int64(w)) != w {
				t.Fatalf("weight %d would be rounded", w)
			}
		}
		clusters := rapid.IntRange(1, h.vertices()).Draw(t, "clusters")
		label := make([]int32, h.vertices())
		for v := range label {
			label[v] = int32(v % clusters)
		}
		coarse := require.Value(h.contract(context.Background(), label, clusters))(t)
		block := make([]int32, clusters)
		for l := range block {
			block[l] = int32(rapid.IntRange(0, k-1).Draw(t, "block"))
		}
		got, want := slowCosts(coarse, k, block), slowCosts(h, k, project(block, label))
		heaviest := slices.Max(append(coarse.netWeights(), 0))
		if !equalCosts(got, want) && heaviest < 8 {
			t.Fatalf("clusters cost %+v, their vertices %+v", got, want)
		}
	})
}

func TestClusteringRespectsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, _ := drawHypergraph(t, 3)
		if rapid.Bool().Draw(t, "homes") {
			h.home = make([]int32, h.vertices())
			for v := range h.home {
				h.home[v] = int32(rapid.IntRange(-1, 1).Draw(t, "home"))
			}
		}
		heaviest := int32(rapid.IntRange(3, 9).Draw(t, "heaviest"))
		want := rapid.IntRange(1, h.vertices()).Draw(t, "want")
		tm := newTeam(2)
		defer tm.close()
		label, clusters, err := h.cluster(t.Context(), tm, heaviest, want)
		require.NoError(t, err)
		if clusters < want && h.vertices() >= want {
			t.Fatalf("%d clusters, want %d at least", clusters, want)
		}
		weight := make([]int32, clusters)
		home := map[int32]int32{}
		for v, l := range label {
			weight[l] += h.weight[v]
			if h.home == nil {
				continue
			}
			if first, ok := home[l]; ok && first != h.home[v] {
				t.Fatalf("cluster %d is bound to %d and to %d", l, first, h.home[v])
			}
			home[l] = h.home[v]
		}
		if slices.Max(weight) > heaviest {
			t.Fatalf("a cluster weighs %d, more than %d", slices.Max(weight), heaviest)
		}
		if slices.Min(weight) == 0 {
			t.Fatal("a cluster is empty")
		}
	})
}

func TestRounded(t *testing.T) {
	for _, tc := range []struct {
		weight int64
		want   int32
	}{{1, 1}, {7, 7}, {8, 8}, {9, 10}, {11, 12}, {15, 16}, {100, 96}, {1 << 40, 1 << 28}} {
		if got := rounded(tc.weight); got != tc.want {
			t.Errorf("rounded(%d) = %d, want %d", tc.weight, got, tc.want)
		}
	}
}
