package proxy

import (
	"log/slog"
	"net"
	"testing"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/test/require"
)

// closing is a connection that calls a function when it is closed.
type closing struct {
	net.Conn
	closes func()
}

func (c *closing) Close() error {
	c.closes()
	return c.Conn.Close()
}

// A connection that cannot go on is reset without the lock of passes: closing it may wait for the
// locks of all jobs, and the goroutine that answers the agent's pings takes the lock.
func TestLostConnectionIsResetWithoutTheLock(t *testing.T) {
	p := require.Value(New(Options{MeshPort: 9814, Insecure: true, Log: slog.New(slog.DiscardHandler)}))(t)
	s := &p.passes
	close(s.halt) // the proxy ends, and has no heir
	mine, process := net.Pipe()
	defer process.Close()
	closed, free := false, false
	job := &closing{mine, func() {
		closed = true
		if free = s.mu.TryLock(); free {
			s.mu.Unlock()
		}
	}}
	c, err := s.resumeTransit(&transit{State: keep.State{Dialed: true}, job: job, links: make(chan arrival, 1)})
	if c != nil || err == nil {
		t.Fatalf("without an heir the connection goes on as %v, with error %v", c, err)
	}
	if !closed || !free {
		t.Errorf("the process's connection was closed: %v; without the lock: %v", closed, free)
	}
	if s.counts.Lost != 1 {
		t.Errorf("%d connections are lost, want 1", s.counts.Lost)
	}
}
