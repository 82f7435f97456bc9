// Package compare holds the test that measures package best against gpmetis and
// a Parsa-style greedy, on the same graphs in the same run.
package compare

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/best"
	"github.com/psidecar/psidecar/test/graphs"

	"github.com/psidecar/psidecar/test/parsa"
	"github.com/psidecar/psidecar/test/require"
)

// What is compared is chosen by PSIDECAR_COMPARE, a list such as
// "rcv1-excerpt:8,news20-rebuilt:64"; the default takes a minute or two.
const (
	variable = "PSIDECAR_COMPARE"
	standard = "rcv1-excerpt:8,soc-slashdot:16"
)

// A result is one row of the table.
type result struct {
	name    string
	traffic partition.Traffic
	largest int64 // samples on one machine
	seconds float64
}

func TestBestIsBetterThanOthers(t *testing.T) {
	require.Time(t)
	require.Program(t, "gpmetis")
	list := os.Getenv(variable)
	if list == "" {
		list = standard
	}
	for _, entry := range strings.Split(list, ",") {
		t.Run(entry, func(t *testing.T) {
			name, after, _ := strings.Cut(entry, ":")
			k, err := strconv.Atoi(after)
			if err != nil {
				t.Fatalf("%s: %q is no DATASET:K", variable, entry)
			}
			g := require.Value(graphs.FromFile(t.Context(), require.Dataset(t, name+".libsvm.xz"), dataset.Options{}))(t)
			compare(t, g, k)
		})
	}
}

func compare(t *testing.T, g *graph.Graph, k int) {
	o := partition.Options{K: k, Seed: 1}
	others := []result{
		run(t, "gpmetis", g, o, metis(t)),
		run(t, "parsa", g, o, parsa.Partition),
	}
	best := run(t, "best", g, o, best.Partition)
	max, total := others[0].traffic.Max, others[0].traffic.Total
	for _, r := range others {
		max, total = min(max, r.traffic.Max), min(total, r.traffic.Total)
	}
	bound := float64(2*best.traffic.Total) / float64(k)
	t.Logf("best: max %.1f%% below, total %.1f%% below, max %.2f%% above the bound",
		100*(1-float64(best.traffic.Max)/float64(max)), 100*(1-float64(best.traffic.Total)/float64(total)),
		100*(float64(best.traffic.Max)/bound-1))
	if float64(best.traffic.Max) > 0.9*float64(max) {
		t.Errorf("max %d is not 10%% below %d", best.traffic.Max, max)
	}
	if best.traffic.Total > total {
		t.Errorf("total %d is above %d", best.traffic.Total, total)
	}
	if float64(best.traffic.Max) > 1.03*bound {
		t.Errorf("max %d is more than 3%% above 2 x total / k = %.0f", best.traffic.Max, bound)
	}
}

// run measures one partitioner. The others' parameters are placed both ways:
// theirs is the lower total and the lower max, even if no one placement has
// both.
func run(t *testing.T, name string, g *graph.Graph, o partition.Options, p partition.Partitioner) result {
	t.Helper()
	began := time.Now()
	a, err := p(t.Context(), g, o)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	r := result{name: name, seconds: time.Since(began).Seconds(), traffic: partition.Measure(g, a, o.K)}
	if name == "best" {
		if err := partition.Check(g, a, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	} else {
		if a.Params, err = partition.FlatOwners(t.Context(), g, a.Samples, o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r.traffic.Max = min(r.traffic.Max, partition.Measure(g, a, o.K).Max)
	}
	held := make([]int64, o.K)
	for _, i := range a.Samples {
		held[i]++
		r.largest = max(r.largest, held[i])
	}
	t.Logf("%-8s max %8d  total %8d  2 x total / k %8d  most samples %6d  %6.1f s", name, r.traffic.Max,
		r.traffic.Total, 2*r.traffic.Total/int64(o.K), r.largest, r.seconds)
	return r
}

// metis returns a partitioner that runs gpmetis on the bipartite graph, for the
// communication volume, the samples balanced and the parameters free.
func metis(t *testing.T) partition.Partitioner {
	return func(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
		dir := t.TempDir()
		file := dir + "/bipartite.graph"
		if err := writeMetis(file, g); err != nil {
			return nil, err
		}
		if err := runMetis(ctx, file, o); err != nil {
			return nil, err
		}
		parts, err := readParts(fmt.Sprintf("%s.part.%d", file, o.K), g.Samples())
		if err != nil {
			return nil, err
		}
		params, err := partition.OwnersAtUsers(ctx, g, parts, o)
		return &partition.Assignment{Samples: parts, Params: params}, err
	}
}
