package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// push returns a push of one key with a value of size bytes, as ZMTP frames.
func push(timestamp int32, size int) []byte {
	meta := pslite.Meta{
		Request: true, Push: true, Timestamp: timestamp, Head: 0, AppID: 0, CustomerID: 0,
		DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float},
	}
	var b []byte
	frame := func(body []byte, more bool) {
		b = append(zmtp.AppendHeader(b, zmtp.FrameHeader(len(body), more)), body...)
	}
	frame(meta.Append(nil, pslite.DMLC), true)
	frame(pslite.AppendKeys(nil, []uint64{7}), true)
	frame(make([]byte, size), false)
	return b
}

func greeting() []byte {
	g := zmtp.NewGreeting(1, 3)
	return zmtp.AppendReady(bytes.Clone(g[:]), "DEALER", []byte("ps9"))
}

// stream sends b.N times a MiB over each of so many connections, first being
// what each begins with, and waits until all has come.
func stream(b *testing.B, addr string, connections int, first, piece []byte) {
	b.SetBytes(int64(len(piece) * connections))
	var conns []*net.TCPConn
	for range connections {
		c := dial(b, addr)
		require.Value(c.Write(first))(b)
		conns = append(conns, c)
	}
	b.ResetTimer()
	var sending sync.WaitGroup
	for _, c := range conns {
		sending.Go(func() {
			for range b.N {
				if _, err := c.Write(piece); err != nil {
					b.Error(err)
					return
				}
			}
			c.CloseWrite()
			if _, err := c.Read(make([]byte, 1)); err != io.EOF { // the receiver has it all
				b.Error(err)
			}
		})
	}
	sending.Wait()
}

// BenchmarkBytes moves bytes that are not PS-lite's.
func BenchmarkBytes(b *testing.B) {
	for _, connections := range []int{1, 64} {
		for _, way := range ways {
			b.Run(fmt.Sprintf("connections=%d/%s", connections, way.name), func(b *testing.B) {
				addr := way.open(b, serve(b, discard))
				stream(b, addr, connections, []byte("not ZMTP"), make([]byte, 1<<20))
			})
		}
	}
}

// BenchmarkMessages moves pushes of 1 MiB, whose frames psidecar reads.
func BenchmarkMessages(b *testing.B) {
	for _, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			addr := way.open(b, serve(b, discard))
			stream(b, addr, 1, greeting(), push(1, 1<<20))
		})
	}
}

// BenchmarkPushAndWait sends a small push and waits for an answer as large,
// again and again on one connection, and reports how long that took.
func BenchmarkPushAndWait(b *testing.B) {
	message := push(1, 64)
	for _, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			addr := way.open(b, serve(b, func(c *net.TCPConn) { io.Copy(struct{ io.Writer }{c}, c) }))
			c := dial(b, addr)
			hello := greeting()
			c.Write(hello)
			require.Value(io.ReadFull(c, make([]byte, len(hello))))(b)
			times := make([]time.Duration, 0, b.N)
			answer := make([]byte, len(message))
			for b.Loop() {
				start := time.Now()
				if _, err := c.Write(message); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, answer); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			for _, q := range []float64{0.5, 0.99, 0.999} {
				at := times[int(q*float64(len(times)-1))]
				b.ReportMetric(float64(at.Nanoseconds())/1e3, fmt.Sprintf("p%g-us", 100*q))
			}
			if !bytes.Equal(answer, message) {
				b.Error("another message came back")
			}
		})
	}
}
