package handover

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// A proxy that replaces another waits until the agent says that it is its turn: for an
// agent that comes later or ends meanwhile too, and not for one that is older.
func TestAwaitTurn(t *testing.T) {
	hello := Message{Kind: Hello, Version: Version, Turns: true}
	for _, c := range []struct {
		name   string
		agents [][]Message // what one after the other says
		want   error
	}{
		{"its turn", [][]Message{{hello, {Kind: Turn}}}, nil},
		{"an agent ends", [][]Message{{hello}, {hello, {Kind: Turn}}}, nil},
		{"an older agent", [][]Message{{{Kind: Hello, Version: Version}}}, nil},
		{"refused", [][]Message{{hello, {Kind: Refused, Error: "no"}}}, errRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			at := filepath.Join(t.TempDir(), "s")
			ended := make(chan error, 1)
			go func() { ended <- AwaitTurn(t.Context(), at) }() // before there is an agent
			l := require.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"}))(t)
			defer l.Close()
			for _, says := range c.agents {
				raw := require.Value(l.AcceptUnix())(t)
				conn := NewConn(raw)
				if m, _, err := conn.Receive(); err != nil || m.Kind != Hello || !m.Waits {
					t.Errorf("the proxy says %+v, %v", m, err)
				}
				for _, m := range says {
					if err := conn.Send(m, nil); err != nil {
						t.Error(err)
					}
				}
				conn.Close()
			}
			if err := <-ended; !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := AwaitTurn(ctx, filepath.Join(t.TempDir(), "none")); !errors.Is(err, context.Canceled) {
		t.Errorf("it is to end: %v", err)
	}
}
