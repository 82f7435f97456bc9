package sidecar

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// sink is a task that takes connections and drops what comes. It prints its port.
func sink([]string) error {
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		}()
	}
}

// storm is a task that makes connections to an address until it is killed, some thousands a
// second, each of which begins as PS-lite's do and says no more. Beside that it keeps all
// processors busy, so that the others come to run at odd moments.
func storm(args []string) error {
	for range 4 * runtime.NumCPU() {
		go func() {
			for spins := 0; ; {
				spins++
			}
		}()
	}
	greeting := zmtp.NewGreeting(0, 3)
	begin := zmtp.AppendReady(greeting[:], "DEALER", []byte("ps9"))
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			for {
				c, err := net.Dial("tcp4", args[0])
				if err != nil {
					continue // in passing from one way to the other
				}
				_, _ = c.Write(begin)
				_ = c.(*net.TCPConn).SetLinger(0) // no port waits for its end
				c.Close()
			}
		})
	}
	fmt.Println("begun")
	return g.Wait()
}

// TestEndsBesideNewConnections: psidecar up that is told to end while connections are being
// made without pause ends in order, and leaves nothing. Several times, since it is about what
// happens in between.
func TestEndsBesideNewConnections(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program := hoststest.BuildJob(t, "cmd/psidecar")
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	port := hoststest.Start(t, n.Host(1), "sink", hoststest.Task("sink")).Line()
	target := net.JoinHostPort(n.Host(1).IPv4.String(), port)
	for range 5 {
		s := Start(t, n.Host(0), program, "sidecar", "--sample", "1")
		stormy := hoststest.Start(t, n.Host(0), "job", hoststest.Task("storm", target))
		stormy.Line()
		flowing(t, s)
		s.Stop(t)
		if log := s.Log(); strings.Contains(log, "panic") || strings.Count(log, "msg=ended") != 1 {
			t.Fatalf("it did not end in order:\n%s", log)
		}
		require.NoError(t, stormy.Kill())
		<-stormy.Done()
	}
}

// flowing returns when the sidecar carries connections.
func flowing(t *testing.T, s *Sidecar) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		state := require.Value(s.Connections(ctx))(t)
		if state.Carried > 100 {
			return
		}
	}
}
