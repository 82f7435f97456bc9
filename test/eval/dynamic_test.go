package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/traces"
)

// TestPruningOrder: as in DW23 Fig. 8, DPPA moves less than repartitioning, and locality less
// than both.
func TestPruningOrder(t *testing.T) {
	e := &evaluation{}
	p := traces.Pruning{Workers: 8, Servers: 8, Pictures: traces.DrawImages(2000, 16, 1), Hidden: 16, Batch: 16, Snapshots: 12, Rounds: 2,
		Sparsity: 0.95, Epsilon: 0.01, Own: 0.8, LearningRate: 0.1, Seed: 1}
	uses := require.Value(p.Trace(&traces.PruningReport{}))(t)
	r := require.Value(e.simulate(uses, p.Rounds, true))(t)
	total := map[string]float64{}
	for _, s := range r.Results {
		total[s.Strategy] = s.Sum.Total
	}
	if !(total["locality"] < total["dppa"] && total["dppa"] < total["mgp"]) {
		t.Errorf("bytes between machines: %v", total)
	}
}

// TestWanderingOrder: where hot keys wander, the busiest machine moves less with locality than
// with any other strategy, be values short or long, favourites kept for long or not.
func TestWanderingOrder(t *testing.T) {
	e := &evaluation{}
	for _, width := range []int{1, 4, 16, 64} {
		for _, wander := range []int{50, 150} {
			w := traces.Wandering{Workers: 4, Servers: 4, Steps: 300, Width: width, Seed: 1, Count: train.CountOptions{
				Keys: 50_000, Batch: 100, Favourites: 400, Common: 0.1, Skew: 1, Wander: wander}}
			uses := require.Value(w.Trace())(t)
			r := require.Value(e.simulate(uses, 10, false))(t)
			busiest := map[string]float64{}
			for _, s := range r.Results {
				busiest[s.Strategy] = s.Sum.Busiest
			}
			for name, bytes := range busiest {
				if name != "locality" && bytes <= busiest["locality"] {
					t.Errorf("%d values a key, other favourites every %d steps: locality moves %.0f, %s %.0f", width, wander, busiest["locality"], name, bytes)
				}
			}
			if 3*busiest["locality"] > busiest["home"] {
				t.Errorf("%d values a key, other favourites every %d steps: %v", width, wander, busiest)
			}
		}
	}
}

// TestDynamicWithoutData runs the part without MNIST: made pictures take its place.
func TestDynamicWithoutData(t *testing.T) {
	var out, log bytes.Buffer
	dir := t.TempDir()
	require.NoError(t, run(t.Context(), []string{"--what", "dynamic", "--quick", "--out", dir, "--datasets", dir}, &out, &log))
	if !strings.Contains(log.String(), "pictures that are made") || strings.Count(out.String(), "strategy") != 4 {
		t.Errorf("log %q, tables\n%s", log.String(), out.String())
	}
	for _, name := range []string{"dynamic-fig8.png", "dynamic-wandering.png"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 10_000 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
