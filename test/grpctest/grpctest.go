// Package grpctest serves gRPC to a test without a network.
package grpctest

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/psidecar/psidecar/test/require"
)

// Serve starts a server of what is registered, and returns a connection to it.
// Both end with the test.
func Serve(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(opts...)
	register(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	conn := require.Value(grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })))(t)
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(conn.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	return conn
}
