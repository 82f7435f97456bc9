package multilevel

import (
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkDatasets divides real sets among 8 machines.
func BenchmarkDatasets(b *testing.B) {
	for _, name := range []string{"rcv1-excerpt", "soc-slashdot", "criteo-80k", "news20-rebuilt"} {
		b.Run(name, func(b *testing.B) {
			g, err := graph.FromFile(b.Context(), require.Dataset(b, name+".libsvm.xz"), dataset.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				a, err := MBP(b.Context(), g, partition.Options{K: 8, Seed: 1})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(partition.Measure(g, a, 8).Max), "max")
			}
		})
	}
}
