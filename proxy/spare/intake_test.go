package spare

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sync/semaphore"
)

// roomy is servers that share a room. It is used in a bubble: what takes long takes no time.
type roomy struct {
	t       *testing.T
	room    *semaphore.Weighted
	size    int64 // of room
	servers []*Server
	ctx     context.Context
	cancel  context.CancelFunc
	links   sync.WaitGroup
}

func newRoomy(t *testing.T, size int64, servers int) *roomy {
	ctx, cancel := context.WithCancel(context.Background())
	r := &roomy{t: t, room: semaphore.NewWeighted(size), size: size, ctx: ctx, cancel: cancel}
	for range servers {
		store := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		r.servers = append(r.servers, NewServer(store, ServerOptions{Room: r.room}))
	}
	t.Cleanup(func() {
		cancel()
		r.links.Wait()
		r.expectFree(size)
	})
	return r
}

// link returns a link to a server, and what Serve will return.
func (r *roomy) link(server int) (net.Conn, <-chan error) {
	here, there := net.Pipe()
	r.t.Cleanup(func() { here.Close() })
	result := make(chan error, 1)
	r.links.Go(func() { result <- r.servers[server].Serve(r.ctx, there) })
	if b, err := readFrame(here); err != nil || b[0] != typeFree {
		r.t.Errorf("a link begins with % x, %v", b, err)
	}
	return here, result
}

// expectFree checks how much of the room is free.
func (r *roomy) expectFree(n int64) {
	r.t.Helper()
	synctest.Wait()
	if !r.room.TryAcquire(n) {
		r.t.Fatalf("less than %d bytes of the room are free", n)
	}
	if n < r.size && r.room.TryAcquire(1) {
		r.t.Fatalf("more than %d bytes of the room are free", n)
	}
	r.room.Release(n)
}

// pushOf returns the frame of a push of n bytes to a key.
func pushOf(number uint64, n int) []byte {
	return encodeMessage(&message{push: true, kind: Int8, number: number, asks: []Ask{{1, int32(number)}}, pieces: []Piece{{number, make([]byte, n)}}})
}

// memoryOf returns what a push with one key takes of a room.
func memoryOf(frame []byte) int64 {
	return int64(bufferSize(len(frame)-lengthSize) + askMemory + pieceMemory)
}

// mustWrite writes to a link.
func mustWrite(t *testing.T, conn net.Conn, b []byte) {
	t.Helper()
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// expectAnswer checks that the next frame is the answer to a request that was done.
func expectAnswer(t *testing.T, conn net.Conn, number uint64) {
	t.Helper()
	b, err := readFrame(conn)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := decodeReply(b); err != nil || r.number != number || r.failure() != nil {
		t.Fatalf("the answer is %+v, %v; want one to %d", r, err, number)
	}
}

func TestMemoryOfRequests(t *testing.T) {
	if a, p := unsafe.Sizeof(Ask{}), unsafe.Sizeof(Piece{}); a != askMemory || p != pieceMemory {
		t.Errorf("an ask takes %d bytes, and a piece %d", a, p)
	}
}

// A buffer that is used again has what was counted.
func TestBuffersHaveTheirSize(t *testing.T) {
	for _, n := range []int{1, bufferStep - 1, bufferStep, bufferStep + 1, 3*bufferStep + 7, mostPooled - 1, mostPooled, mostPooled + 1, mostFrame} {
		for range 2 {
			b := takeLarge(n)
			if len(b) != n || cap(b) != bufferSize(n) || cap(b) < n || cap(b) >= n+bufferStep {
				t.Errorf("a buffer of %d bytes has %d, and takes %d", n, len(b), cap(b))
			}
			giveLarge(b)
		}
	}
}

// Much that is claimed takes nothing before 64 KiB of it came, and what it takes is free again once no more comes.
func TestStalledRequestGivesItsRoomBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20
		r := newRoomy(t, size, 2)
		claim, other := pushOf(1, 6<<20), pushOf(2, 4<<20)
		slow, slowEnd := r.link(0)
		mustWrite(t, slow, claim[:mostUncounted])
		r.expectFree(size)
		mustWrite(t, slow, claim[mostUncounted:][:100])
		r.expectFree(size - memoryOf(claim))
		conn, _ := r.link(1)
		// A request that is not counted does not wait.
		mustWrite(t, conn, pushOf(3, 50<<10))
		expectAnswer(t, conn, 3)
		time.Sleep(time.Second)
		mustWrite(t, conn, other)
		expectAnswer(t, conn, 2)
		if err := <-slowEnd; !errors.Is(err, errStalled) {
			t.Errorf("a link that stalls ends with %v", err)
		}
		r.expectFree(size)
	})
}

// A request stalls wherever in it the other side stops, but not before it begins.
func TestRequestStallsAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomy(t, 8<<20, 1)
		frame := pushOf(2, 1<<20)
		for _, n := range []int{1, lengthSize, lengthSize + 5, lengthSize + requestHead, 1000, mostUncounted + 1, mostUncounted + progress + 10, len(frame) - 1} {
			conn, end := r.link(0)
			mustWrite(t, conn, pushOf(1, 10))
			expectAnswer(t, conn, 1)
			time.Sleep(time.Hour) // it may be idle
			mustWrite(t, conn, frame[:n])
			if err := <-end; !errors.Is(err, errStalled) {
				t.Errorf("after %d bytes the link ends with %v", n, err)
			}
			r.expectFree(r.size)
		}
	})
}

// A byte now and then is no progress.
func TestTrickleStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomy(t, 8<<20, 1)
		conn, end := r.link(0)
		frame := pushOf(1, 6<<20)
		mustWrite(t, conn, frame[:2*mostUncounted])
		r.expectFree(r.size - memoryOf(frame))
		for i := 2 * mostUncounted; len(end) == 0 && i < 2*mostUncounted+10; i++ {
			time.Sleep(requestWithin - time.Second)
			conn.Write(frame[i : i+1]) // fails once the link has ended
			synctest.Wait()
		}
		if len(end) == 0 {
			t.Fatal("the link has not ended")
		}
		if err := <-end; !errors.Is(err, errStalled) {
			t.Errorf("the link ends with %v", err)
		}
		r.expectFree(r.size)
	})
}

// What comes slowly is not cut: 128 MiB at 20 Mbit/s take longer than a request may stall.
func TestSlowRequestIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomy(t, LeastRoom, 1)
		conn, _ := r.link(0)
		began := time.Now()
		const size = 128 << 20
		m := message{push: true, kind: Int8, number: 1, asks: []Ask{{1, 1}}, pieces: []Piece{{1, make([]byte, 8)}}}
		mustWrite(t, conn, encodeMessage(&m))
		expectAnswer(t, conn, 1)
		// The value has another length than the key's: so it need not be on a disk.
		m.number, m.asks[0].Timestamp, m.pieces[0].Value = 2, 2, make([]byte, size)
		b := encodeMessage(&m)
		for len(b) > 0 {
			time.Sleep(100 * time.Millisecond)
			n := min(len(b), 250_000)
			mustWrite(t, conn, b[:n])
			b = b[n:]
		}
		answer, err := readFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := decodeReply(answer); err != nil || r.number != 2 || r.failure() == nil {
			t.Errorf("the answer is %+v, %v", r, err)
		}
		if d := time.Since(began); d < 50*time.Second {
			t.Errorf("it took %v: that tells nothing", d)
		}
		// The least progress.
		b = pushOf(3, 10*progress)
		for len(b) > 0 {
			n := min(len(b), progress)
			mustWrite(t, conn, b[:n])
			b = b[n:]
			time.Sleep(requestWithin - time.Second)
		}
		expectAnswer(t, conn, 3)
	})
}

// Requests that are too large together are served one after the other, even if all of them begin at once.
func TestLargeRequestsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, links, each = 8 << 20, 6, 3
		r := newRoomy(t, size, 2)
		frames := make([][]byte, each)
		for i := range frames {
			frames[i] = pushOf(uint64(i), 6<<20)
		}
		conns := make([]net.Conn, links)
		ends := make([]<-chan error, links)
		for i := range conns {
			conns[i], ends[i] = r.link(i % 2)
			mustWrite(t, conns[i], frames[0][:mostUncounted])
		}
		r.expectFree(size)
		var all sync.WaitGroup
		for _, conn := range conns {
			all.Go(func() {
				for i, frame := range frames {
					if i == 0 {
						frame = frame[mostUncounted:]
					}
					for len(frame) > 0 { // all of them take part of the way
						n := min(len(frame), 256<<10)
						if _, err := conn.Write(frame[:n]); err != nil {
							t.Error(err)
							return
						}
						frame = frame[n:]
						time.Sleep(10 * time.Millisecond)
					}
					b, err := readFrame(conn)
					if err != nil {
						t.Error(err)
						return
					}
					if r, err := decodeReply(b); err != nil || r.failure() != nil || r.number != uint64(i) {
						t.Errorf("the answer is %+v, %v", r, err)
					}
				}
				conn.Close()
			})
		}
		all.Wait()
		for _, end := range ends {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
	})
}

// A request that gets no memory ends its link. The client sends it again until there is room, and gets one
// answer.
func TestRequestWithoutMemoryGoesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20
		r := newRoomy(t, size, 1)
		if !r.room.TryAcquire(size - 1<<20) {
			t.Fatal("the room is not free")
		}
		var got recorder
		var mu sync.Mutex
		var ends []error
		c := NewClient(ClientOptions{Answer: got.note, Dial: func(context.Context) (Link, error) {
			here, there := net.Pipe()
			r.links.Go(func() {
				err := r.servers[0].Serve(r.ctx, there)
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, err)
			})
			return Link{Conn: here}, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		c.Send(&Request{Worker: 1, Timestamp: 1, Push: true, Kind: Int8, Pieces: []Piece{{1, bytes.Repeat([]byte{1}, 1000)}}})
		c.Send(&Request{Worker: 1, Timestamp: 2, Push: true, Kind: Int8, Pieces: []Piece{{2, make([]byte, 2<<20)}}})
		c.Send(&Request{Worker: 1, Timestamp: 3, Push: true, Pull: true, Kind: Int8, Pieces: []Piece{{1, bytes.Repeat([]byte{1}, 1000)}}})
		time.Sleep(5 * requestWithin)
		synctest.Wait()
		if n := got.count(); n != 1 {
			t.Errorf("%d answers, want that of the small request", n)
		}
		mu.Lock()
		if len(ends) < 3 {
			t.Errorf("%d links ended, want some", len(ends))
		}
		for _, err := range ends {
			if !errors.Is(err, errNoMemory) {
				t.Errorf("a link ended with %v", err)
			}
		}
		mu.Unlock()
		r.room.Release(size - 1<<20)
		time.Sleep(requestWithin)
		synctest.Wait()
		if a := got.got[Ask{1, 3}]; got.n != 3 || a.Err != nil || len(a.Values) != 1 || !bytes.Equal(a.Values[0], bytes.Repeat([]byte{2}, 1000)) {
			t.Errorf("%d answers, and the last is %v", got.n, a.Err)
		}
		cancel()
		running.Wait()
	})
}

// The room is that of all keys too: they take more memory than bytes of a frame.
func TestKeysAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, keys = 8 << 20, 8000
		r := newRoomy(t, size, 1)
		m := message{pull: true, number: 1, asks: []Ask{{1, 1}}, pieces: make([]Piece, keys)}
		b := encodeMessage(&m)
		if len(b) > mostUncounted {
			t.Fatalf("the frame has %d bytes", len(b))
		}
		if !r.room.TryAcquire(size - keys*pieceMemory) {
			t.Fatal("the room is not free")
		}
		conn, end := r.link(0)
		mustWrite(t, conn, b)
		if err := <-end; !errors.Is(err, errNoMemory) {
			t.Errorf("the link ends with %v", err)
		}
		r.room.Release(size - keys*pieceMemory)
		// Keys that the frame cannot have are not counted.
		conn, end = r.link(0)
		binary.LittleEndian.PutUint32(b[lengthSize+16:], mostPieces)
		mustWrite(t, conn, b)
		if err := <-end; !errors.Is(err, errForm) {
			t.Errorf("the link ends with %v", err)
		}
	})
}

// A wait for memory ends with the server, and with a link on which an answer cannot be written.
func TestWaitForMemoryEnds(t *testing.T) {
	for name, finish := range map[string]func(*roomy, net.Conn){
		"server": func(r *roomy, _ net.Conn) { r.cancel() },
		"link":   func(_ *roomy, conn net.Conn) { conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoomy(t, 8<<20, 1)
				if !r.room.TryAcquire(r.size) {
					t.Fatal("the room is not free")
				}
				conn, end := r.link(0)
				mustWrite(t, conn, pushOf(1, 10)) // nobody reads the answer
				mustWrite(t, conn, pushOf(2, 1<<20)[:mostUncounted+lengthSize])
				synctest.Wait()
				began := time.Now()
				finish(r, conn)
				if err := <-end; err != nil || time.Since(began) > 0 {
					t.Errorf("the link ended after %v with %v", time.Since(began), err)
				}
				r.room.Release(r.size)
			})
		})
	}
}

// chunks is a link on which bytes come in pieces of any size.
type chunks struct {
	net.Conn // nil
	b        []byte
	random   *rand.Rand
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+c.random.IntN(100_000))], c.b)
	c.b = c.b[n:]
	return n, nil
}

func (c *chunks) SetReadDeadline(time.Time) error { return nil }

// However a link cuts requests, they are read as they were sent, and a link keeps little of them.
func TestRequestsInPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	var sizes []int
	var all []byte
	for i := range 60 {
		n := random.IntN(1000)
		switch i % 3 {
		case 1:
			n = mostUncounted - 50 + random.IntN(100)
		case 2:
			n = random.IntN(1 << 20)
		}
		sizes = append(sizes, n)
		m := message{push: true, kind: Int8, number: uint64(i), asks: []Ask{{1, 2}, {3, int32(i)}}, pieces: []Piece{{5, bytes.Repeat([]byte{byte(i)}, n)}}}
		all = append(all, encodeMessage(&m)...)
	}
	in := newIntake(&chunks{b: all, random: random}, nil, semaphore.NewWeighted(2<<20), requestWithin)
	for i, n := range sizes {
		m, err := in.readRequest(t.Context())
		if err != nil || m.number != uint64(i) || len(m.pieces) != 1 || !bytes.Equal(m.pieces[0].Value, bytes.Repeat([]byte{byte(i)}, n)) {
			t.Fatalf("request %d is number %d, %v", i, m.number, err)
		}
		in.releaseRoom()
		if cap(in.buf) > mostUncounted || in.large != nil || in.held != 0 {
			t.Fatalf("the link keeps %d and %d bytes, and %d of the room", cap(in.buf), cap(in.large), in.held)
		}
	}
	if _, err := in.readRequest(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
}
