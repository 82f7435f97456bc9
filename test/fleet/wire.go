package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// wire counts what goes to the planner and comes from it.
type wire struct {
	sent, received atomic.Uint64 // bytes

	mu    sync.Mutex // guards dials
	dials []time.Time
}

// address is a host's own, so that the planner sees as many as there are hosts.
func address(host int) string {
	return fmt.Sprintf("127.1.%d.%d", (host+1)>>8, (host+1)&0xff)
}

// dial returns a dialer of a host.
func (w *wire) dial(host int) func(context.Context, string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address(host))}}
	return func(ctx context.Context, to string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", to)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		w.dials = append(w.dials, time.Now())
		w.mu.Unlock()
		return &counted{conn, w}, nil
	}
}

// busiest returns how many connections were made in the busiest second since some
// time, and how many in all.
func (w *wire) busiest(since time.Time) (most, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := 0
	for i, at := range w.dials {
		if at.Before(since) {
			first = i + 1
			continue
		}
		all++
		for w.dials[first].Before(at.Add(-time.Second)) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most, all
}

// counted is a connection whose bytes are counted.
type counted struct {
	net.Conn
	wire *wire
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.received.Add(uint64(n))
	return n, err
}

// Write implements io.Writer.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.wire.sent.Add(uint64(n))
	return n, err
}
