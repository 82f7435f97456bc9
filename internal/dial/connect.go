package dial

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// connectWithin bounds one attempt to connect. gRPC's own next attempt comes as late, when the
// session has failed already.
const connectWithin = 3 * time.Second

// Connect runs sessions with the peer at a gRPC target, one after another, until ctx ends. Each
// has a connection of its own, which ends with it. The pause alone decides when the next
// attempt is made: with gRPC's backoff, all hosts would come back at the same moment, or, where
// it is zero, without any pause.
//
// session returns when it has failed, and whether the peer had answered, in which case the next
// pause is a first one. Connect returns nil when ctx has ended; an error is about the target or
// the options.
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
