package jobs

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// A connection on which a process is silent is woken for the router, which puts
// a message in, and for the relay, whose Read ends; neither costs the other
// its turn, and what comes later is read.
func TestWakeForRouterAndRelay(t *testing.T) {
	client, accepted := connected(t)
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c := j.Outbound(accepted, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "here").(*requests)
	defer c.Close()
	type result struct {
		n   int
		err error
	}
	reads := make(chan result)
	read := func() {
		n, err := c.Read(make([]byte, 1<<16))
		reads <- result{n, err}
	}
	expect := func(what string, n int, want error) {
		t.Helper()
		select {
		case r := <-reads:
			if r.n != n || !errors.Is(r.err, want) {
				t.Fatalf("%s: %d bytes, %v; want %d, %v", what, r.n, r.err, n, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: not woken", what)
		}
	}
	g := zmtp.NewGreeting(0, 0)
	greeting := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
	if _, err := client.Write(greeting); err != nil {
		t.Fatal(err)
	}
	go read()
	expect("the greeting", len(g), nil)
	go read()
	expect("who it is", len(greeting)-len(g), nil)
	var barrier pslite.Meta
	barrier.Reset()
	barrier.Control.Cmd = pslite.Barrier
	message := appendMessage(nil, [][]byte{barrier.Append(nil, pslite.DMLC)})
	for range 50 {
		go read()
		c.put(message)
		expect("the router's message", len(message), nil)
		go read()
		c.SetReadDeadline(time.Now())
		expect("the relay's turn", 0, os.ErrDeadlineExceeded)
		c.SetReadDeadline(time.Time{})
		c.put(message)
		c.SetReadDeadline(time.Now()) // both at once
		go read()
		expect("the router's message before the relay's turn", len(message), nil)
		c.SetReadDeadline(time.Time{})
		go read()
		if _, err := client.Write(message); err != nil {
			t.Fatal(err)
		}
		expect("the job's message", len(message), nil)
	}
}
