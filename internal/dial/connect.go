package dial

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// connectWithin bounds one attempt to connect. gRPC itself tries again after as long;
// by then the session has failed.
const connectWithin = 3 * time.Second

// Connect holds one session after the other with the peer at a gRPC target until ctx
// ends, each over a connection of its own, which ends with the session. Only the pause
// decides when an attempt is made: gRPC's own would have all hosts back at one moment, or
// try without a pause where its backoff is zero.
//
// A session returns when it failed, and whether the peer had answered: then the next pause
// is a first one. The error is one of the target or options, or nil when ctx has ended.
func Connect(ctx context.Context, target string, options []grpc.DialOption, pause *Pause, session func(context.Context, *grpc.ClientConn) (answered bool)) error {
	options = append(slices.Clone(options), grpc.WithConnectParams(grpc.ConnectParams{
		MinConnectTimeout: connectWithin,
		Backoff:           backoff.Config{BaseDelay: connectWithin, Multiplier: 1, MaxDelay: connectWithin},
	}))
	for {
		conn, err := grpc.NewClient(target, options...)
		if err != nil {
			return fmt.Errorf("planner %s: %w", target, err)
		}
		answered := session(ctx, conn)
		conn.Close()
		if answered {
			pause.Reset()
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}
