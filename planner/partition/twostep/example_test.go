package twostep

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/require"
)

// paperGraph is the correlation graph of DWW21 Fig. 3 to 5. The figures are
// drawings; its edges follow from the text and from Tables 2 and 3: d1 has p1
// and p2, d1 and d2 have p1 to p3 between them, d3 and d4 four parameters each
// (Table 3) and the same ones (Table 2: 4 together), six parameters in all, and
// p3 is the one that is used on both sides in Fig. 4(b).
func paperGraph(t *testing.T) *graph.Graph {
	t.Helper()
	g := require.Value(graph.FromRows([][]uint64{{1, 2}, {1, 2, 3}, {3, 4, 5, 6}, {3, 4, 5, 6}}))(t)
	return g
}

// TestTables checks the costs that Tables 2 and 3 list.
func TestTables(t *testing.T) {
	l := &literal{g: paperGraph(t), sets: []map[uint32]bool{{}, {0: true}, {1: true}}}
	for _, tc := range []struct {
		name string
		set  int // 0: nothing assigned, 1: d1, 2: d2
		add  []uint32
		want int64
	}{
		{"Table 2, iteration 1, d1 d2", 0, []uint32{0, 1}, 3},
		{"Table 2, iteration 1, d1 d3", 0, []uint32{0, 2}, 6},
		{"Table 2, iteration 1, d1 d4", 0, []uint32{0, 3}, 6},
		{"Table 2, iteration 1, d2 d3", 0, []uint32{1, 2}, 6},
		{"Table 2, iteration 1, d2 d4", 0, []uint32{1, 3}, 6},
		{"Table 2, both iterations, d3 d4", 0, []uint32{2, 3}, 4},
		{"Table 3, iteration 1, d1", 0, []uint32{0}, 2},
		{"Table 3, iterations 1 and 2, d2", 0, []uint32{1}, 3},
		{"Table 3, iterations 1 and 2, d3", 0, []uint32{2}, 4},
		{"Table 3, iterations 1 and 2, d4", 0, []uint32{3}, 4},
		{"Table 3, iteration 3, d3", 1, []uint32{2}, 6},
		{"Table 3, iteration 3, d4", 1, []uint32{3}, 6},
		{"Table 3, iteration 4, d4", 2, []uint32{3}, 6},
	} {
		if got := l.f(tc.set, tc.add...); got != tc.want {
			t.Errorf("%s: cost %d, want %d", tc.name, got, tc.want)
		}
	}
}

// TestFigures checks the assignments of Fig. 4 (alpha = 2) and Fig. 5
// (alpha = 1), the largest neighbour sets, and the parameters that move.
func TestFigures(t *testing.T) {
	for _, tc := range []struct {
		name       string
		rules      Rules
		samples    []int32
		neighbours int64
		moved      int64
	}{
		{"Fig. 4", Rules{Alpha: 2, Beta: 4}, []int32{0, 0, 1, 1}, 4, 1},
		{"Fig. 4, beta by default", Rules{Alpha: 2}, []int32{0, 0, 1, 1}, 4, 1},
		{"Fig. 5", Rules{Alpha: 1}, []int32{0, 1, 0, 1}, 6, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, o := paperGraph(t), partition.Options{K: 2}
			a := require.Value(Partition(t.Context(), g, o, tc.rules))(t)
			if !slices.Equal(a.Samples, tc.samples) {
				t.Errorf("samples on %v, want %v", a.Samples, tc.samples)
			}
			if got := slices.Max(partition.Used(g, a, 2)); got != tc.neighbours {
				t.Errorf("max |N(D_i)| = %d, want %d", got, tc.neighbours)
			}
			if got := partition.Measure(g, a, 2).Total; got != tc.moved {
				t.Errorf("%d parameters move between the machines, want %d", got, tc.moved)
			}
		})
	}
}
