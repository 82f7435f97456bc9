package handover

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// An agent learns with the hello whether the proxy can be spared, then of each change once, and
// which connections do not need it. One that does not know what that is is told nothing.
func TestAgentIsToldWhatIsSpared(t *testing.T) {
	var spares atomic.Bool
	agents := make(chan *Conn)
	client := NewLocalClient(func(context.Context) (*net.UnixConn, error) {
		agent, proxy, err := Pair()
		agents <- NewConn(agent)
		return proxy, err
	}, func(context.Context, *Listener) error { return nil })
	client.Spares(spares.Load)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	source := Source{7, netip.MustParseAddrPort("127.0.0.1:40000")}
	for i, knows := range []bool{true, false, true} {
		agent := <-agents
		want := func(want Message) {
			t.Helper()
			m, _, err := agent.Receive()
			if err != nil || m.Kind != want.Kind || m.On != want.On || m.Netns != want.Netns || m.Address != want.Address {
				t.Fatalf("agent %d is sent %+v, %v; want %+v", i, m, err, want)
			}
		}
		ping := func() {
			t.Helper()
			require.NoError(t, agent.Send(Message{Kind: Ping}, nil))
			want(Message{Kind: Pong})
		}
		before := spares.Load()
		want(Message{Kind: Hello, On: before})
		require.NoError(t, agent.Send(Message{Kind: Hello, Version: Version, On: knows}, nil))
		ping()
		client.Judge(nil) // nothing new
		spares.Store(!before)
		client.Judge([]Source{source})
		client.Judge(nil)
		if knows {
			want(Message{Kind: Spares, On: !before})
			want(Message{Kind: Unneeded, Netns: source.Netns, Address: source.Address})
		}
		ping()
		agent.Close()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
