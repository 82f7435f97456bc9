package partition

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
)

// drawProblem draws a small graph and options that some assignment satisfies.
func drawProblem(t *rapid.T) (*graph.Graph, Options) {
	n := rapid.IntRange(1, 40).Draw(t, "n")
	rows := make([][]uint64, n)
	for s := range rows {
		rows[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(0, 30), 0, 8, rapid.ID).Draw(t, "row")
	}
	g, err := graph.FromRows(rows)
	if err != nil {
		t.Fatal(err)
	}
	k := rapid.IntRange(1, n).Draw(t, "k")
	o := Options{K: k, Seed: rapid.Uint64().Draw(t, "seed")}
	machine := rapid.Int32Range(-1, int32(k-1))
	if rapid.Bool().Draw(t, "fixed") {
		o.FixedSamples = make([]int32, n)
		for s := range o.FixedSamples {
			o.FixedSamples[s] = -1
		}
		o.FixedSamples[0] = machine.Draw(t, "machine")
		o.FixedParams = rapid.SliceOfN(machine, g.Params(), g.Params()).Draw(t, "fixed params")
	} else if rapid.Bool().Draw(t, "groups") {
		o.Group = rapid.SliceOfN(rapid.Int32Range(-1, 3), g.Params(), g.Params()).Draw(t, "group")
	}
	if rapid.Bool().Draw(t, "capacity") && o.FixedSamples == nil {
		o.Capacity = rapid.SliceOfN(rapid.Float64Range(0.5, 3), k, k).Draw(t, "capacities")
	}
	return g, o
}

func TestRandomKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, o := drawProblem(t)
		a, err := Random(t.Context(), g, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(g, a, o); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRandomIsEven(t *testing.T) {
	g, err := graph.Random{Samples: 10_001, Params: 20_000, Degree: 8, Seed: 1}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const k = 8
	a, err := Random(t.Context(), g, Options{K: k, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var samples, params [k]int
	for _, i := range a.Samples {
		samples[i]++
	}
	for _, i := range a.Params {
		params[i]++
	}
	for i := range k {
		if samples[i] < 10_001/k || samples[i] > 10_001/k+1 {
			t.Errorf("machine %d has %d of 10001 samples", i, samples[i])
		}
		if mean := g.Params() / k; params[i] < mean*9/10 || params[i] > mean*11/10 {
			t.Errorf("machine %d has %d of %d parameters", i, params[i], g.Params())
		}
	}
	if b, _ := Random(t.Context(), g, Options{K: k, Seed: 2}); Measure(g, a, k).Total == Measure(g, b, k).Total {
		t.Error("two seeds give one total")
	}
}
