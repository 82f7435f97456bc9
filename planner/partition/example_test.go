package partition_test

import (
	"context"
	"fmt"
	"os"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// Four samples and four parameters on two machines. Machine 0 uses parameter 3,
// which machine 1 owns: both move it.
func ExampleMeasure() {
	g, err := graph.FromRows([][]uint64{{1, 2}, {2, 3}, {3, 4}, {4}})
	if err != nil {
		fmt.Println(err)
		return
	}
	a := &partition.Assignment{Samples: []int32{0, 0, 1, 1}, Params: []int32{0, 0, 1, 1}}
	fmt.Printf("%+v\n", partition.Measure(g, a, 2))
	// Output:
	// {Max:1 Total:1 PerMachine:[1 1]}
}

func ExampleWriteAssignment() {
	g, err := graph.FromRows([][]uint64{{10, 20}, {20, 30}})
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := partition.Random(context.Background(), g, partition.Options{K: 2, Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A machine a line: first the samples, then the parameters by feature id.
	if err := partition.WriteAssignment(os.Stdout, a); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0
	// 1
	// 0
	// 0
	// 0
}
