package dial

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// connectWithin bounds an attempt to connect, connectMost one after others that took too long: a peer
// that a thousand hosts connect to after its restart is busy with them, and would have to begin
// again with each that gives up.
const (
	connectWithin = 3 * time.Second
	connectMost   = 12 * time.Second
)

// nextWithin returns the bound of the next attempt, after a session that took that long with the
// given one.
func nextWithin(within, took time.Duration, answered bool) time.Duration {
	switch {
	case answered:
		return connectWithin
	case took >= within:
		return min(2*within, connectMost)
	}
	return within
}

// Connect runs sessions with the peer at a gRPC target, one after another, until ctx ends. Each
// has a connection of its own, which ends with it. The pause alone decides when the next
// attempt is made: with gRPC's backoff, all hosts would come back at the same moment, or, where
// it is zero, without any pause.
//
// session returns when it has failed, and whether the peer had answered, in which case the next
// pause is a first one. Connect returns nil when ctx has ended; an error is about the target or
// the options.
func Connect(ctx context.Context, target string, options []grpc.DialOption, pause *Pause, session func(context.Context, *grpc.ClientConn) (answered bool)) error {
	within := connectWithin
	for {
		// gRPC's own next attempt comes so late that the session has failed before.
		conn, err := grpc.NewClient(target, append(slices.Clip(options), grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: within,
			Backoff:           backoff.Config{BaseDelay: within, Multiplier: 1, MaxDelay: within},
		}))...)
		if err != nil {
			return fmt.Errorf("planner %s: %w", target, err)
		}
		began := time.Now()
		answered := session(ctx, conn)
		conn.Close()
		within = nextWithin(within, time.Since(began), answered)
		if answered {
			pause.Reset()
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}
