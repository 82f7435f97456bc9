package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy whose ports are still in use asks for its turn again. No other error has it do so, and
// it is none that the context ends.
func TestCarryInTurn(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	require.NoError(t, err)
	turns := make(chan int, 1) // how many an agent has given when its socket is closed
	go func() {
		n := 0
		for {
			raw, err := l.AcceptUnix()
			if err != nil {
				turns <- n
				return
			}
			n++
			conn := handover.NewConn(raw)
			conn.Receive()
			for _, m := range []handover.Message{{Kind: handover.Hello, Version: handover.Version, Turns: true}, {Kind: handover.Turn}} {
				if err := conn.Send(m, nil); err != nil {
					t.Error(err)
				}
			}
			conn.Close()
		}
	}()
	broken := errors.New("it fails for good")
	tries := 0
	err = CarryInTurn(t.Context(), socket, func() error {
		if tries++; tries == 1 {
			return fmt.Errorf("listening: %w", syscall.EADDRINUSE)
		}
		return broken
	})
	if err != broken || tries != 2 {
		t.Errorf("tried %d times, %v; want 2 and the second error", tries, err)
	}
	l.Close()
	if n := <-turns; n != 2 {
		t.Errorf("asked for %d turns, want 2", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := CarryInTurn(ctx, filepath.Join(t.TempDir(), "none"), func() error { return broken }); err != nil {
		t.Errorf("without a turn until the end: %v", err)
	}
}
