package handover

import (
	"context"
	"net"
	"testing"
)

// A proxy hears from its agent which workers push no more, and goes on with what the
// agent says next while it sees to that.
func TestLastPushes(t *testing.T) {
	type worker struct {
		job  string
		node int32
	}
	dial := func(context.Context) (*net.UnixConn, error) {
		agent, proxy, err := Pair()
		if err != nil {
			return nil, err
		}
		go func() {
			c := NewConn(agent)
			defer c.Close()
			if _, _, err := c.Receive(); err != nil {
				t.Error(err)
			}
			for _, m := range []Message{{Kind: Hello, Version: Version}, {Kind: LastPush, Job: "198.18.0.1:9000", Node: 9}, {Kind: LastPush, Job: "198.18.0.1:9000", Node: 11}} {
				if err := c.Send(m, nil); err != nil {
					t.Error(err)
				}
			}
			c.Receive() // the proxy hangs up
		}()
		return proxy, nil
	}
	client := NewLocalClient(dial, func(context.Context, *Listener) error { return nil })
	told := make(chan worker)
	client.LastPushes(func(_ context.Context, job string, node int32) { told <- worker{job, node} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	got := map[worker]bool{<-told: true, <-told: true}
	for _, node := range []int32{9, 11} {
		if !got[worker{"198.18.0.1:9000", node}] {
			t.Errorf("told of %v, worker %d is not among them", got, node)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
