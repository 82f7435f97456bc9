package role_test

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/api/role"
)

func ExampleURI() {
	fmt.Println(role.URI(role.Proxy, "host1"))
	// Output:
	// psidecar://proxy/host1
}
