package plan_test

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/plan"
)

// Of four servers each has a quarter of the key space at home.
func ExampleHomeOf() {
	fmt.Println(plan.HomeOf(0, 4), plan.HomeOf(1<<62, 4), plan.HomeOf(3<<62, 4))
	// Output:
	// 0 1 3
}

// Key 7 is displaced to server 2, and taken home again.
func ExampleOwners() {
	var owners plan.Owners
	owners.Assign(plan.One(7), 2, 4)
	fmt.Println(owners.Owner(7), owners.Owner(8) == plan.Home, owners.Keys())
	owners.Assign(plan.One(7), plan.HomeOf(7, 4), 4)
	fmt.Println(owners.Owner(7) == plan.Home, owners.Keys())
	// Output:
	// 2 true 1
	// true 0
}
