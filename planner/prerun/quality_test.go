package prerun_test

import (
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// A table5Row compares with a line of DWW21 Table 5 (k = 8, improvement over
// random in percent). The paper's files are not the ones here:
//
//   - Its news20 has 15,935 samples and 62,061 attributes (Table 4: 1.5e4 and
//     6.2e4): the 20-class set of short word lists. news20-rebuilt has 1.35
//     million, half of them in two messages only.
//   - Its rcv1.binary has 44,504 attributes in use for 20,242 samples;
//     rcv1-excerpt has 28,191 for 23,749, so each is shared by 1.9 times as many
//     samples and there is less to gain. The paper's 109% would be a maximum of
//     12,821, which is less than the hypergraph partitioner Mt-KaHyPar reaches
//     on this file (13,254).
//   - Its social graph has 4.8 million nodes in communities. soc-Slashdot has
//     78,441 around a few hubs; the paper's 175% would be a maximum of 24,443,
//     where gpmetis reaches 30,456.
type table5Row struct {
	file, standsFor string
	paper           map[string]float64 // algorithm -> the paper's figure
	least           map[string]float64 // what ours must keep
}

var table5 = []table5Row{
	{"rcv1-excerpt", "rcv1.binary",
		map[string]float64{"tsh1": 109, "tsh2": 111, "mbp": 103},
		map[string]float64{"tsh1": 60, "tsh2": 62, "mbp": 64}},
	{"soc-slashdot", "soc-LiveJournal",
		map[string]float64{"tsh1": 175, "tsh2": 183, "mbp": 82},
		map[string]float64{"tsh1": 57, "tsh2": 61, "mbp": 75}},
	{"news20-rebuilt", "news20",
		map[string]float64{"tsh1": 184, "tsh2": 193, "mbp": 175},
		map[string]float64{"tsh1": 153, "tsh2": 160, "mbp": 155}},
}

// improvement partitions a data set and returns the improvement over random.
func improvement(t testing.TB, g *graph.Graph, name string) float64 {
	t.Helper()
	al := require.Value(prerun.FindAlgorithm(name))(t)
	o := partition.Options{K: 8, Seed: 1}
	a, _, err := prerun.Run(t.Context(), g, al, o)
	require.NoError(t, err)
	random := require.Value(prerun.RandomBaseline(t.Context(), g, o))(t)
	return prerun.Judge(g, a, o, random).Improvement()
}

// TestTable5 keeps what was reached on the two smaller sets, and by TSH-1 on
// the large one.
func TestTable5(t *testing.T) {
	require.Time(t)
	for _, row := range table5 {
		t.Run(row.file, func(t *testing.T) {
			g := load(t, row.file)
			for name, paper := range row.paper {
				if g.Edges() > 5e6 && name != "tsh1" {
					continue
				}
				got := improvement(t, g, name)
				t.Logf("%s: %.0f%% over random; DWW21 on %s: %.0f%%", name, got, row.standsFor, paper)
				if got < row.least[name] {
					t.Errorf("%s: %.1f%% over random, has been above %.0f%%", name, got, row.least[name])
				}
			}
		})
	}
}

func load(t testing.TB, name string) *graph.Graph {
	t.Helper()
	g := require.Value(graphs.FromFile(t.Context(), require.Dataset(t, name+".libsvm.xz"), dataset.Options{}))(t)
	return g
}
