package best_test

import (
	"context"
	"fmt"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/best"
)

// Two groups of samples that share no parameter need no traffic.
func ExamplePartition() {
	g, err := graph.FromRows([][]uint64{{1, 2}, {5, 6}, {2, 3}, {6, 7}, {1, 3}, {5, 7}})
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := best.Partition(context.Background(), g, partition.Options{K: 2, Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	traffic := partition.Measure(g, a, 2)
	fmt.Println(traffic.Max, traffic.Total, a.Samples[0] == a.Samples[2], a.Samples[0] == a.Samples[1])
	// Output:
	// 0 0 true false
}
