package handover

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// An agent is told of each part key once, in messages that it can receive, and the next one anew. One that does not
// know what they are is told nothing.
func TestPartKeysAreToldOnce(t *testing.T) {
	const job, other = "198.18.0.1:9000", "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
	var mu sync.Mutex // guards all
	all := map[string][]PartRange{other: {{7, 9, 0}}}
	add := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		for range n {
			at := ^uint64(len(all[job]))
			all[job] = append(all[job], PartRange{at, at, at})
		}
	}
	agents := make(chan *Conn)
	client := NewLocalClient(func(context.Context) (*net.UnixConn, error) {
		agent, proxy, err := Pair()
		agents <- NewConn(agent)
		return proxy, err
	}, func(context.Context, *Listener) error { return nil })
	client.PartKeys(func() map[string][]PartRange {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(all)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	knows := []bool{true, false, true}
	for i, knowing := range knows {
		agent := <-agents
		receive := func() Message {
			t.Helper()
			m, _, err := agent.Receive()
			if err != nil {
				t.Fatalf("agent %d: %v", i, err)
			}
			return m
		}
		if m := receive(); m.Kind != Hello {
			t.Fatalf("agent %d is sent a %s first", i, m.Kind)
		}
		require.NoError(t, agent.Send(Message{Kind: Hello, Version: Version, PartKeys: knowing}, nil))
		told, count := map[toldPart]bool{}, 0
		for n := range 3 {
			if n != 1 { // at the second ping nothing is new
				add(mostParts + n)
			}
			require.NoError(t, agent.Send(Message{Kind: Ping}, nil))
			for pong := false; !pong || knowing && count < len(all[job])+1; {
				m := receive()
				switch {
				case m.Kind == Pong && !pong:
					pong = true
				case m.Kind != PartKeys || !knowing || len(m.Parts) == 0:
					t.Fatalf("agent %d is sent a %s with %d ranges", i, m.Kind, len(m.Parts))
				}
				for _, r := range m.Parts {
					told[toldPart{m.Job, r}] = true
					count++
				}
			}
		}
		if knowing && (count != len(told) || !told[toldPart{other, all[other][0]}] || slices.ContainsFunc(all[job], func(r PartRange) bool { return !told[toldPart{job, r}] })) {
			t.Errorf("agent %d was told %d ranges, %d of them different, of %d", i, count, len(told), len(all[job])+1)
		}
		if i == len(knows)-1 {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		agent.Close()
	}
}
