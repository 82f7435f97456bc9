package pslite_test

import (
	"fmt"

	"github.com/psidecar/psidecar/proxy/pslite"
)

func ExampleOwner() {
	first, end := pslite.KeyRange(1, 2)
	fmt.Println(first, end)
	fmt.Println(pslite.Owner(first, 2))
	fmt.Println(pslite.Owner(1<<64-1, 2)) // PS-lite reserves the largest key
	// Output:
	// 9223372036854775807 18446744073709551614
	// 1 true
	// 2 false
}

func ExampleNodeName() {
	fmt.Println(pslite.NodeName(pslite.SchedulerID), pslite.NodeName(pslite.ServerID(0)), pslite.NodeName(pslite.WorkerID(3)))
	// Output:
	// scheduler server0 worker3
}
