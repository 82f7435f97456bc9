package partition

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/require"
)

// draw draws a small graph, options and the machines of the samples.
func draw(t *rapid.T) (*graph.Graph, []int32, Options) {
	n := rapid.IntRange(4, 30).Draw(t, "samples")
	m := rapid.IntRange(1, 30).Draw(t, "features")
	drawn := make([][]uint64, n)
	for s := range drawn {
		drawn[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(1, uint64(m)), 1, min(m, 6), rapid.ID[uint64]).Draw(t, "row")
	}
	g, err := graph.FromRows(drawn)
	require.NoError(t, err)
	if rapid.Bool().Draw(t, "weights") {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 50), g.Params(), g.Params()).Draw(t, "bytes")
		g = require.Value(g.WithWeights(weights, nil))(t)
	}
	o := Options{K: rapid.IntRange(1, 4).Draw(t, "k")}
	if rapid.Bool().Draw(t, "speed") {
		o.Speed = rapid.SliceOfN(rapid.Float64Range(0.5, 3), o.K, o.K).Draw(t, "speeds")
	}
	samples := rapid.SliceOfN(rapid.Int32Range(0, int32(o.K)-1), n, n).Draw(t, "machines")
	return g, samples, o
}

func users(g *graph.Graph, samples []int32, p int) []int32 {
	var users []int32
	for _, s := range g.SamplesOf(p) {
		users = append(users, samples[s])
	}
	slices.Sort(users)
	return slices.Compact(users)
}

func total(g *graph.Graph, a *Assignment, o Options) float64 {
	o.Speed = nil
	sum := 0.0
	for _, l := range Loads(g, a, o) {
		sum += l
	}
	return sum
}

// must places by AtUsers or Flat.
func must(t require.TB, place func(context.Context, *graph.Graph, []int32, Options) ([]int32, error), g *graph.Graph, samples []int32, o Options) []int32 {
	params := require.Value(place(context.Background(), g, samples, o))(t)
	return params
}

func TestOwnersAreUsersAndFlatIsFlatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, samples, o := draw(t)
		at := &Assignment{Samples: samples, Params: must(t, OwnersAtUsers, g, samples, o)}
		least := 0.0 // each parameter once for each user but one, both ends
		for p, i := range at.Params {
			u := users(g, samples, p)
			if !slices.Contains(u, i) {
				t.Fatalf("parameter %d lies on %d, its users are %v", p, i, u)
			}
			least += 2 * float64(len(u)-1) * float64(g.ParamWeight(p))
		}
		if got := total(g, at, o); got != least {
			t.Fatalf("total %g, want %g", got, least)
		}
		flat := &Assignment{Samples: samples, Params: must(t, FlatOwners, g, samples, o)}
		most := slices.Max(Loads(g, at, o))
		if got := slices.Max(Loads(g, flat, o)); got > most*(1+1e-9) {
			t.Fatalf("Flat's busiest machine needs %g, that of AtUsers %g", got, most)
		}
	})
}

// TestLoadsAreThoseOfTheAssignment: what the greedy and the levelling count
// along the way is what the assignment costs.
func TestLoadsAreThoseOfTheAssignment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, samples, o := draw(t)
		items := require.Value(itemsOf(context.Background(), g, samples, o))(t)
		pl := &placing{speed: o.Speed, items: items, owner: make([]int32, len(items)), load: make([]int64, o.K)}
		if pl.speed == nil {
			pl.speed = slices.Repeat([]float64{1}, o.K)
		}
		require.NoError(t, pl.greedy(context.Background()))
		require.NoError(t, pl.flatten(context.Background(), rapid.Bool().Draw(t, "lend")))
		a := &Assignment{Samples: samples, Params: pl.owner}
		plain := o
		plain.Speed = nil
		for i, want := range Loads(g, a, plain) {
			if float64(pl.load[i]) != want {
				t.Fatalf("machine %d: counted %d, it moves %g", i, pl.load[i], want)
			}
		}
	})
}

// TestLevels: 4 machines share 300 parameters, all by all, and 100 by two each.
func TestLevels(t *testing.T) {
	drawn := make([][]uint64, 4)
	for s := range drawn {
		for id := range uint64(300) {
			drawn[s] = append(drawn[s], id)
		}
		for id := range uint64(100) {
			if int(id)%4 == s || int(id+1)%4 == s {
				drawn[s] = append(drawn[s], 1000+id)
			}
		}
	}
	g := require.Value(graph.FromRows(drawn))(t)
	samples := []int32{0, 1, 2, 3}
	tr := Measure(g, &Assignment{Samples: samples, Params: must(t, OwnersAtUsers, g, samples, Options{K: 4})}, 4)
	if tr.Total != 300*3+100 || tr.Max != 500 {
		t.Errorf("total %d, max %d; want 1000 and 500", tr.Total, tr.Max)
	}
}
