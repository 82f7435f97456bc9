package identity_test

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/identity"
)

func ExampleRoleURI() {
	fmt.Println(identity.RoleURI(identity.ProxyRole, "host1"))
	// Output:
	// psidecar://proxy/host1
}
