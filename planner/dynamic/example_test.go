package dynamic_test

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// Machine 1 alone uses an item that machine 0 owns: the item moves there.
func ExampleNew() {
	strategy, err := dynamic.New("locality", dynamic.Options{Machines: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	items := &dynamic.Items{Owner: []int32{0, 0}, Home: []int32{0, 0}, Size: []float32{16, 16}}
	for range 5 {
		moves, err := strategy.Plan(items, &dynamic.Epoch{Steps: 20, Uses: []dynamic.Use{
			{Item: 0, Machine: 0, Bytes: 2000},
			{Item: 1, Machine: 1, Bytes: 2000},
		}})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, m := range moves {
			fmt.Printf("%+v\n", m)
			items.Owner[m.Item] = m.To
		}
	}
	// Output:
	// {Item:1 To:1}
}
