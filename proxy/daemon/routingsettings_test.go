package daemon

import (
	"testing"

	"google.golang.org/grpc/credentials"
)

// With --share-pulls false nothing is kept for spare servers to leave out.
func TestKeptForSpareServers(t *testing.T) {
	for share, want := range map[string]int64{ShareAuto: 1 << 20, "true": 1 << 20, "false": 0} {
		f := Settings{Share: share, Memory: 8 << 20, MeshPort: 9814}
		f.Routing = RoutingSettings{Act: true, Planner: "planner:9811", Handler: "add", Split: "2", Spare: true, SpareLimit: 1 << 30, Host: "a",
			Credentials: func() (credentials.TransportCredentials, error) { return nil, nil }}
		o, err := f.routed()
		if err != nil {
			t.Fatal(err)
		}
		if o.SpareKeep != want {
			t.Errorf("--share-pulls %s: %d bytes are kept, want %d", share, o.SpareKeep, want)
		}
	}
}
