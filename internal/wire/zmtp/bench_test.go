package zmtp

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// messages returns n messages of one frame of size bytes each.
func messages(n, size int) []byte {
	var b []byte
	for range n {
		b = append(AppendHeader(b, FrameHeader(size, false)), make([]byte, size)...)
	}
	return b
}

// drain reads chunk to its end and returns the messages and body bytes in it.
func drain(b *testing.B, d *Decoder, chunk []byte) (messages, bytes int) {
	for {
		ev, rest, err := d.Next(chunk)
		require.NoError(b, err)
		switch ev.Kind {
		case NeedMore:
			return messages, bytes
		case FrameBody:
			bytes += len(ev.Body)
		case FrameEnd:
			messages++
		}
		chunk = rest
	}
}

// BenchmarkSmallMessages reads messages of 50 bytes out of chunks of 64 KiB,
// cut where they happen to be cut.
func BenchmarkSmallMessages(b *testing.B) {
	const size = 64 << 10
	stream := messages(1<<16, 50)
	d := NewDecoder(Limits{})
	d.Reset(true)
	b.ReportAllocs()
	total, at := 0, 0
	for b.Loop() {
		end := min(at+size, len(stream))
		n, _ := drain(b, d, stream[at:end])
		total += n
		if at = end; at == len(stream) {
			at = 0
		}
	}
	b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkStepOverValues reads pushes of 1 MiB in chunks of 64 KiB, as a
// connection would give them, and steps over the values; BenchmarkMemcpy
// copies the same bytes in the same chunks, for comparison in the same run.
func BenchmarkStepOverValues(b *testing.B) {
	stream := pushes(16)
	d := NewDecoder(Limits{})
	d.Reset(true)
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		for at := 0; at < len(stream); at += 64 << 10 {
			drain(b, d, stream[at:min(at+64<<10, len(stream))])
		}
	}
}

func BenchmarkMemcpy(b *testing.B) {
	stream := pushes(16)
	to := make([]byte, len(stream))
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		for at := 0; at < len(stream); at += 64 << 10 {
			copy(to[at:], stream[at:min(at+64<<10, len(stream))])
		}
	}
}

// pushes returns n messages of a meta, 8 KiB of keys and 1 MiB of values.
func pushes(n int) []byte {
	var b []byte
	for range n {
		for i, size := range []int{26, 8 << 10, 1 << 20} {
			b = append(AppendHeader(b, FrameHeader(size, i < 2)), make([]byte, size)...)
		}
	}
	return b
}

func BenchmarkConn(b *testing.B) {
	for _, bc := range []struct {
		name string
		size int
	}{{"50 bytes", 50}, {"1 MiB", 1 << 20}} {
		b.Run(bc.name, func(b *testing.B) {
			dealer, router := connected(b)
			done := make(chan error, 1)
			go func() {
				var m Message
				for {
					if err := router.ReadMessage(&m); err != nil {
						done <- err
						return
					}
				}
			}()
			body := make([]byte, bc.size)
			b.SetBytes(int64(bc.size))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, dealer.Queue(body))
			}
			require.NoError(b, dealer.Flush())
			dealer.nc.(*net.TCPConn).CloseWrite()
			if err := <-done; err != io.EOF {
				b.Fatal(err)
			}
		})
	}
}

// What the benchmarks report is asserted here: reading and writing messages
// allocates nothing once the buffers have grown.
func TestNoAllocations(t *testing.T) {
	stream := pushes(2)
	d := NewDecoder(Limits{})
	d.Reset(true)
	if n := testing.AllocsPerRun(20, func() {
		for rest := stream; ; {
			ev, r, err := d.Next(rest)
			require.NoError(t, err)
			if rest = r; ev.Kind == NeedMore {
				return
			}
		}
	}); n != 0 {
		t.Errorf("reading allocates %v times", n)
	}
	dealer, router := connected(t)
	small, large := make([]byte, 50), make([]byte, 20<<10)
	var m Message
	if n := testing.AllocsPerRun(200, func() {
		require.NoError(t, errors.Join(dealer.Queue(small, large, small), dealer.Flush()))
		require.NoError(t, router.ReadMessage(&m))
	}); n != 0 {
		t.Errorf("a message through a Conn allocates %v times", n)
	}
}
