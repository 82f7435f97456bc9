package dial

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// While a peer refuses connections there is one attempt for each session, however long
// the pauses between them: gRPC makes none of its own.
func TestAttemptsAreThoseOfSessions(t *testing.T) {
	var dials atomic.Int64
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			dials.Add(1)
			return nil, errors.New("refused")
		}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sessions := int64(0)
	err := Connect(ctx, "passthrough:peer", options, &Pause{First: 50 * time.Millisecond, Most: 100 * time.Millisecond}, func(ctx context.Context, conn *grpc.ClientConn) bool {
		if err := conn.Invoke(ctx, "/peer/Ask", nil, nil); status.Code(err) != codes.Unavailable {
			t.Errorf("a session fails with %v, want Unavailable", err)
		}
		if sessions++; sessions == 10 {
			cancel()
		}
		return false
	})
	if err != nil {
		t.Error(err)
	}
	if n := dials.Load(); n != sessions {
		t.Errorf("%d attempts to connect in %d sessions", n, sessions)
	}
}

// A target that cannot be one is said at once.
func TestConnectRefusesATarget(t *testing.T) {
	err := Connect(t.Context(), "unix://relative", nil, PausePlanner(time.Second), func(context.Context, *grpc.ClientConn) bool {
		t.Error("there is a session")
		return false
	})
	if err == nil {
		t.Error("no error")
	}
}
