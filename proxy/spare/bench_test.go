package spare

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// BenchmarkPush adds a value to one that is there, beside a copy of as many bytes.
func BenchmarkPush(b *testing.B) {
	for _, size := range []int{128 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB/push", size>>10), func(b *testing.B) {
			s, err := OpenStore(filepath.Join(b.TempDir(), "store"), StoreOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			pieces := []Piece{{1, make([]byte, size)}}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			timestamp := int32(0)
			for b.Loop() {
				if err := s.Push([]Ask{{1, timestamp}}, element.Float32, pieces); err != nil {
					b.Fatal(err)
				}
				timestamp++
			}
		})
		b.Run(fmt.Sprintf("%dKiB/copy", size>>10), func(b *testing.B) {
			src, dst := make([]byte, size), make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

// BenchmarkRoundTrip pushes and pulls a value over a loopback link, beside a plain exchange of as many
// bytes in both directions.
func BenchmarkRoundTrip(b *testing.B) {
	const size = 128 << 10
	b.Run("push and pull", func(b *testing.B) {
		s, err := OpenStore(filepath.Join(b.TempDir(), "store"), StoreOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		server := NewServer(s, ServerOptions{Room: semaphore.NewWeighted(LeastRoom)})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer listener.Close()
		ctx, cancel := context.WithCancel(b.Context())
		served, ran := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(served)
			conn, err := listener.Accept()
			if err == nil {
				err = server.Serve(ctx, conn)
			}
			if err != nil {
				b.Error(err)
			}
		}()
		answers := make(chan Answer, 1)
		c := NewClient(ClientOptions{
			Dial: func(context.Context) (Link, error) {
				conn, err := net.Dial("tcp", listener.Addr().String())
				return Link{Conn: conn}, err
			},
			Answer: func(a Answer) { answers <- a },
		})
		go func() {
			defer close(ran)
			c.Run(ctx)
		}()
		value := make([]byte, size)
		b.SetBytes(2 * size)
		b.ReportAllocs()
		timestamp := int32(0)
		for b.Loop() {
			c.Send(&Request{Worker: 1, Timestamp: timestamp, Push: true, Pull: true, Pieces: []Piece{{1, value}}})
			if a := <-answers; a.Err != nil {
				b.Fatal(a.Err)
			}
			timestamp++
		}
		cancel()
		<-served
		<-ran
	})
	b.Run("bytes alone", func(b *testing.B) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer listener.Close()
		echoed := make(chan struct{})
		go func() {
			defer close(echoed)
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			buf := make([]byte, size)
			for {
				if _, err := io.ReadFull(conn, buf); err != nil {
					return
				}
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		}()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, size)
		b.SetBytes(2 * size)
		for b.Loop() {
			if _, err := conn.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(conn, buf); err != nil {
				b.Fatal(err)
			}
		}
		conn.Close()
		<-echoed
	})
}
