package require

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// ServeInMemory starts a server of what is registered, and returns a connection to it.
// Both end with the test.
func ServeInMemory(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(opts...)
	register(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(conn.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	return conn
}
