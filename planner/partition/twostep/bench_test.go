package twostep

import (
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkTenMillionEdges divides a graph with the skew and the topics of a
// text among 16 machines.
func BenchmarkTenMillionEdges(b *testing.B) {
	g, err := graph.Random{Samples: 200_000, Params: 1_000_000, Degree: 50, Exponent: 1, Topics: 50, TopicShare: 0.5, Seed: 1}.Build(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	o := partition.Options{K: 16}
	b.Run("TSH-1", func(b *testing.B) {
		for b.Loop() {
			if _, err := TSH1(b.Context(), g, o); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(g.Edges()), "edges")
	})
	a, err := partition.Random(b.Context(), g, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("parameters", func(b *testing.B) {
		for b.Loop() {
			if _, err := PlaceParams(b.Context(), g, o, a.Samples); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDatasets divides real sets among 8 machines.
func BenchmarkDatasets(b *testing.B) {
	for _, name := range []string{"rcv1-excerpt", "soc-slashdot", "criteo-80k", "news20-rebuilt"} {
		b.Run(name, func(b *testing.B) {
			g, err := graph.FromFile(b.Context(), require.Dataset(b, name+".libsvm.xz"), dataset.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for _, al := range []struct {
				name   string
				divide partition.Partitioner
			}{{"TSH-1", TSH1}, {"TSH-2", TSH2}, {"DPPA", DPPA}} {
				b.Run(al.name, func(b *testing.B) {
					for b.Loop() {
						a, err := al.divide(b.Context(), g, partition.Options{K: 8, Seed: 1})
						if err != nil {
							b.Fatal(err)
						}
						b.ReportMetric(float64(partition.Measure(g, a, 8).Max), "max")
					}
				})
			}
		})
	}
}
