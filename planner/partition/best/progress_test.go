package best

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// What is said to be done of the annealing is the part of it that is done: sweeps of one
// level look at the same pins, so that each brings it on as far as the others, and all
// levels together bring it to where annealing ends. A sweep that moves all vertices
// counts up to three times as much as one that moves none.
func TestProgressIsThePartOfTheWork(t *testing.T) {
	apart := require.Value(graphs.Random{Samples: 8000, Params: 40_000, Degree: 100, Seed: 3}.Build(t.Context()))(t)
	for _, tc := range []struct {
		name   string
		g      *graph.Graph
		work   int64 // in sweeps of the finest level
		levels int   // at least, at most if 1
	}{
		{"all vertices from the start", text(t, 500), enoughSweeps + 500, 1},
		{"samples that share little, cooled by wishes", apart, 60, 1},
		{"level by level", text(t, 4000), 150, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var levels []string
			said := map[string][]float64{} // by phase
			last := 0.0
			phase := ""
			o := partition.Options{K: 4, Seed: 1, Phase: func(name string) {
				if phase = name; strings.HasPrefix(name, "anneal") {
					levels = append(levels, name)
				}
			}, Progress: func(done float64) {
				if done < last || done > 1 {
					t.Errorf("in phase %q %.4f are done, %.4f were before", phase, done, last)
				}
				last = done
				said[phase] = append(said[phase], done)
			}}
			require.Value(divide(t.Context(), tc.g, o, tc.work*sweepWork(tc.g, o.K), 2))(t)
			if last != 1 {
				t.Errorf("at the end %.4f are done", last)
			}
			if len(levels) < tc.levels || tc.levels == 1 && len(levels) != 1 {
				t.Fatalf("levels %q, want %d", levels, tc.levels)
			}
			before := 0.0
			for i, level := range levels {
				all := said[level]
				if i+1 < len(levels) {
					all = append(slices.Clone(all), said[levels[i+1]][0])
				} else {
					all = append(slices.Clone(all), said["flatten"][0])
				}
				if leap := all[0] - before; leap > 0.02 {
					t.Errorf("%s begins %.3f after what was done before", level, leap)
				}
				before = all[len(all)-1]
				sweeps := float64(len(all) - 1)
				for n, done := range all {
					if off := (done-all[0])/(before-all[0]) - float64(n)/sweeps; math.Abs(off) > 0.15 {
						t.Fatalf("%s: after %d of %.0f sweeps %.3f of them are said to be done", level, n, sweeps, (done-all[0])/(before-all[0]))
					}
				}
			}
			if math.Abs(before-annealingEnds) > 0.02 {
				t.Errorf("when annealing has ended %.3f are said to be done, want %.2f", before, annealingEnds)
			}
		})
	}
}
