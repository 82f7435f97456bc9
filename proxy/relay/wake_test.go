package relay

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// speaker has messages of its own, and encodes none of the job's.
type speaker struct {
	plainCodec
	mu   sync.Mutex
	says []byte // each a message
}

func (s *speaker) say(b byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = append(s.says, b)
}

func (s *speaker) Initiate(dst []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.says) == 0 {
		return dst, false
	}
	b := s.says[0]
	s.says = s.says[1:]
	return append(dst, b), true
}

// listener makes of a head a message of one frame, and of 0 none.
type listener struct{ plainCodec }

func (l *listener) Decode(head []byte) ([][]byte, uint32, error) {
	if head[0] == 0 {
		return nil, 0, nil
	}
	return [][]byte{{head[0]}}, 0, nil
}

// watched is a connection that something stands before.
type watched struct{ *net.TCPConn }

// A sender's own messages go while the job says nothing, before its first and
// after its last, and between messages while it does; the job's come complete.
func TestOwnMessages(t *testing.T) {
	t.Run("bare", func(t *testing.T) {
		client, job := tcpPair(t)
		testOwnMessages(t, client, job)
	})
	t.Run("watched", func(t *testing.T) {
		client, job := tcpPair(t)
		testOwnMessages(t, client, watched{job})
	})
}

func testOwnMessages(t *testing.T, client *net.TCPConn, nearJob net.Conn) {
	linkA, linkB := tcpPair(t)
	farJob, server := tcpPair(t)
	s := &speaker{plainCodec: plainCodec{never: true}}
	near := &Conn{Job: nearJob, Far: linkA, Sender: s, Receiver: &plainCodec{}}
	far := &Conn{Job: farJob, Far: linkB, Sender: &plainCodec{never: true}, Receiver: &listener{}}
	ended := make(chan error, 2)
	for _, c := range []*Conn{near, far} {
		go func() { ended <- c.Run(context.Background(), NewMemory(64<<20)) }()
	}
	got := make(chan byte, 1000) // first bytes of frames of one byte
	total := make(chan int, 1)
	go func() {
		n := 0
		defer func() { close(got); total <- n }()
		if _, err := io.ReadFull(server, make([]byte, len(greetingAndReady("DEALER")))); err != nil {
			return
		}
		for {
			frame, err := readFrame(server)
			if err != nil {
				return
			}
			if n += len(frame); len(frame) == 1 {
				n--
				got <- frame[0]
			}
		}
	}()
	require.Value(client.Write(greetingAndReady("DEALER")))(t)
	own := func(b byte) {
		s.say(b)
		near.Wake()
	}
	expect := func(b byte) {
		t.Helper()
		if is := <-got; is != b {
			t.Fatalf("message %d came, want %d", is, b)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	client.Write(push(nil, rng, 3, 40, false))
	for i := range byte(20) {
		own(i + 1)
		expect(i + 1)
	}
	own(0) // for the proxy alone
	want := 0
	for i := range byte(50) {
		b := push(nil, rng, 3, 1+rng.IntN(600<<10), false)
		cut := rng.IntN(len(b))
		client.Write(b[:cut])
		own(100 + i)
		client.Write(b[cut:])
		expect(100 + i)
		want++
	}
	client.CloseWrite()
	<-total
	for range 2 {
		server.Close()
		<-ended
	}
	if n := near.ToFar.Counts().Messages; n != uint64(want+1) {
		t.Errorf("%d messages of the job passed, want %d", n, want+1)
	}
}

func readFrame(r io.Reader) ([]byte, error) {
	var b []byte
	for {
		h, n, err := zmtp.CutHeader(b)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			body := make([]byte, h.Size)
			_, err := io.ReadFull(r, body)
			return body, err
		}
		var one [1]byte
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return nil, err
		}
		b = append(b, one[0])
	}
}

// A kept connection's link breaks just when the direction that waits for the process is
// woken: the break is not lost with the deadline that both set.
func TestABreakWhileWokenIsNotLost(t *testing.T) {
	client, job := tcpPair(t)
	far, _ := tcpPair(t)
	c := &Conn{Job: job, Far: far}
	c.Keep(&Keeping{})
	d := direction{src: job, dst: far, flow: &c.ToFar, side: newEncoder(&plainCodec{never: true}, &c.ToFar), waking: &c.waking, keeping: c.Keeping}
	require.NoError(t, d.in.init(job, NewMemory(1<<20)))
	ended := make(chan error, 1)
	go func() { ended <- d.await() }()
	w := &c.waking
	parked := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.parked != nil
	}
	for !parked() {
		runtime.Gosched()
	}
	// As Wake does, and before the direction can look, as the other one that has seen the break.
	w.mu.Lock()
	w.wanted = true
	require.NoError(t, job.SetReadDeadline(time.Now()))
	c.broke()
	w.mu.Unlock()
	if err := <-ended; !errors.Is(err, ErrBroken) {
		t.Errorf("the direction goes on: %v", err)
	}
	client.Close()
}
