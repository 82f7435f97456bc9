package plan_test

import (
	"fmt"
	"os"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/plan"
)

// The file that --placement of proxy and up reads.
func ExampleWritePlacement() {
	g, err := graph.FromRows([][]uint64{{1, 2}, {2, 3}})
	if err != nil {
		fmt.Println(err)
		return
	}
	a := &partition.Assignment{Samples: []int32{0, 1}, Params: []int32{0, 1, 1}}
	identity := func(id uint64) (uint64, error) { return id, nil } // keys on the wire are feature ids
	p, err := plan.NewPlacement(g, a, 2, identity)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Owner(3))
	if err := plan.WritePlacement(os.Stdout, p); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1 true
	// {"version":1,"epoch":0,"k":2,"servers":[0,1],"runs":[
	// {"first":1,"last":3,"count":3,"gaps":"AAA=","owners":"AAEB"}
	// ]}
}
