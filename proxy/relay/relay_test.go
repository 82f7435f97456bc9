package relay

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStreamsPassByteForByte(t *testing.T) {
	memory := NewMemory(64 << 20)
	for seed := range uint64(6) {
		var senders []*plainCodec
		p := newPath(t, seed, memory, func(sender, _ *plainCodec) {
			sender.holds = seed%2 == 1
			senders = append(senders, sender)
		})
		back := make(chan error, 1)
		go func() {
			back <- transfer(p.server, p.client, stream(seed+1000, 60), rand.New(rand.NewPCG(seed, 3)))
		}()
		if err := transfer(p.client, p.server, stream(seed, 60), rand.New(rand.NewPCG(seed, 4))); err != nil {
			t.Errorf("seed %d: to the server: %v", seed, err)
		}
		if err := <-back; err != nil {
			t.Errorf("seed %d: to the client: %v", seed, err)
		}
		if errs := p.wait(t); errs != [2]error{} {
			t.Errorf("seed %d: %v", seed, errs)
		}
		counts, decoded := p.dialer.ToFar.Counts(), p.acceptor.ToJob.Counts()
		if counts.Encoded == 0 || counts.Encoded != decoded.Encoded {
			t.Errorf("seed %d: %d messages encoded, %d decoded", seed, counts.Encoded, decoded.Encoded)
		}
		if counts.InMessage || decoded.InMessage {
			t.Errorf("seed %d: a direction that ended is still inside a message", seed)
		}
		for _, s := range senders {
			if s.ready != "ps9" {
				t.Errorf("seed %d: the sender was told the identity %q, want ps9", seed, s.ready)
			}
			if (s.held > 0) != s.holds {
				t.Errorf("seed %d: %d messages were held on demand", seed, s.held)
			}
		}
	}
}

// Streams that are not ZMTP, not version 3, not in the clear or not PS-lite's
// pass as they are.
func TestForeignStreamsPass(t *testing.T) {
	curve := greetingAndReady("DEALER")
	copy(curve[12:], "CURVE")
	old := greetingAndReady("DEALER")
	old[10] = 1
	notPS := appendFrame(greetingAndReady("DEALER"), []byte("no meta \xff\xff"), false)
	random := make([]byte, 300<<10)
	rand.NewChaCha8([32]byte{1}).Read(random)
	for name, b := range map[string][]byte{
		"empty": {}, "the longest command": zmtp.AppendCommand(greetingAndReady("DEALER"), "LONG", make([]byte, zmtp.MaxCommand-1-len("LONG"))), "http": []byte("GET / HTTP/1.1\r\n\r\n"), "random": random,
		"half a greeting": greetingAndReady("DEALER")[:40], "half a READY": greetingAndReady("DEALER")[:80],
		"curve": append(curve, random...), "ZMTP 2": append(old, random...), "another program's ZMTP": append(notPS, random...),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPath(t, 1, NewMemory(1<<20), nil)
			if err := transfer(p.client, p.server, b, rand.New(rand.NewPCG(1, 1))); err != nil {
				t.Error(err)
			}
			// The other direction is still open.
			if err := transfer(p.server, p.client, []byte("an answer after the end"), rand.New(rand.NewPCG(1, 1))); err != nil {
				t.Error(err)
			}
			if errs := p.wait(t); errs != [2]error{} {
				t.Error(errs)
			}
		})
	}
}

// A process that ends in the middle of a large message, which the kernel moves, ends its
// stream as anywhere else.
func TestStreamsEndInsideLargeMessages(t *testing.T) {
	p := newPath(t, 1, NewMemory(64<<20), func(sender, _ *plainCodec) { sender.never = true })
	rng := rand.New(rand.NewPCG(1, 1))
	b := push(greetingAndReady("DEALER"), rng, 5, 4<<20, false)
	p.server.SetReadDeadline(time.Now().Add(time.Minute))
	if err := transfer(p.client, p.server, b[:len(b)/2], rng); err != nil {
		t.Error(err)
	}
	p.server.Close()
	p.client.Close()
	p.wait(t)
}

// Where memory is at its bound, messages pass without being held.
func TestNoMemoryMeansNotEncoded(t *testing.T) {
	p := newPath(t, 1, NewMemory(0), func(_, receiver *plainCodec) {})
	rng := rand.New(rand.NewPCG(1, 1))
	b := greetingAndReady("DEALER")
	b = push(b, rng, 5, 20, false)
	b = push(b, rng, 50<<10, 4, false)
	require.NoError(t, transfer(p.client, p.server, b, rng))
	if n := p.dialer.ToFar.Counts().Unheld; n != 1 {
		t.Errorf("%d messages not held, want the large one", n)
	}
	p.server.Close()
	p.wait(t)
}

// What a holder wants is shown whole, up to the limit; beyond it the beginning
// is, and where memory is at its bound nothing.
func TestLargeMessagesAreHeldOnDemand(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for _, c := range []struct {
		name        string
		values      int
		memory      int64
		whole, part int
		unheld      uint64
	}{
		{"5 MiB", 5 << 20, 64 << 20, 1, 0, 0},
		{"beyond the limit", HoldLimit, 512 << 20, 0, 1, 0},
		{"no memory", 5 << 20, 4 << 20, 0, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, job := tcpPair(t)
			far, server := tcpPair(t)
			s := &wholeSender{}
			conn := &Conn{Job: job, Far: far, Sender: s, Receiver: &plainCodec{}}
			ended := make(chan error, 1)
			go func() { ended <- conn.Run(context.Background(), NewMemory(c.memory)) }()
			b := push(greetingAndReady("DEALER"), rng, 4, c.values, true)
			require.NoError(t, transfer(client, server, b, rng))
			server.Close()
			<-ended
			if s.whole != c.whole || s.part != c.part || conn.ToFar.Counts().Unheld != c.unheld {
				t.Errorf("%d messages shown whole, %d in part, %d not held; want %d, %d, %d", s.whole, s.part, conn.ToFar.Counts().Unheld, c.whole, c.part, c.unheld)
			}
		})
	}
}

func TestMalformedBytesEndTheConnection(t *testing.T) {
	start := push(greetingAndReady("DEALER"), rand.New(rand.NewPCG(1, 1)), 3, 12, false)
	for _, c := range []struct {
		name   string
		bytes  []byte
		change func(sender, receiver *plainCodec)
		want   reason.Reason
	}{
		{"reserved flag bits", []byte{0x80, 0}, nil, reason.MalformedJob},
		{"a frame of 2^63 bytes", []byte{2, 0x80, 0, 0, 0, 0, 0, 0, 0}, nil, reason.MalformedJob},
		{"a huge command", zmtp.AppendHeader(nil, zmtp.Header{Flags: zmtp.Command | zmtp.Long, Size: 1 << 40}), nil, reason.MalformedJob},
		{"a command that is too long", zmtp.AppendCommand(nil, "LONG", make([]byte, zmtp.MaxCommand-len("LONG"))), nil, reason.MalformedJob},
		{"the proxies' own command", zmtp.AppendCommand(nil, commandName, []byte{0, 1, 2}), nil, reason.Reserved},
		{"a head that cannot be decoded", push(nil, rand.New(rand.NewPCG(2, 1)), 3, 12, false),
			func(_, receiver *plainCodec) { receiver.corrupt = true }, reason.Codec},
		{"a head that brings a codec down", push(nil, rand.New(rand.NewPCG(2, 1)), 3, 12, false),
			func(_, receiver *plainCodec) { receiver.faulty = true }, reason.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A seed with which the first message is encoded.
			p := newPath(t, 5, NewMemory(1<<20), c.change)
			p.client.Write(append(bytes.Clone(start), c.bytes...))
			errs := p.wait(t)
			if got := [2]reason.Reason{reason.Of(errs[0]), reason.Of(errs[1])}; got[0] != c.want && got[1] != c.want {
				t.Errorf("relays ended by %v, want one by %s", errs, c.want)
			}
			if _, err := io.Copy(io.Discard, p.client); err == nil {
				t.Error("the client saw an orderly end, want a reset")
			}
		})
	}
}

func TestResetsArePropagated(t *testing.T) {
	for _, greet := range []bool{true, false} {
		p := newPath(t, 1, NewMemory(1<<20), nil)
		first := []byte("hello, this is something else")
		if greet {
			first = greetingAndReady("DEALER")
		}
		p.client.Write(first)
		require.Value(io.ReadFull(p.server, make([]byte, len(first))))(t)
		sock.Reset(p.client)
		if _, err := p.server.Read(make([]byte, 1)); !reason.IsReset(err) {
			t.Errorf("the server got %v, want a reset", err)
		}
		errs := p.wait(t)
		if reason.Of(errs[0]) != reason.ResetByJob && reason.Of(errs[1]) != reason.ResetByJob {
			t.Errorf("the relays ended by %v", errs)
		}
	}
}

// A receiver that stops reading makes the sender wait; what lies between them
// is bounded.
func TestBackPressure(t *testing.T) {
	p := newPath(t, 1, NewMemory(1<<20), nil)
	for _, c := range []*net.TCPConn{p.client, p.server, p.dialer.Job.(*net.TCPConn), p.dialer.Far.(*net.TCPConn), p.acceptor.Job.(*net.TCPConn), p.acceptor.Far.(*net.TCPConn)} {
		c.SetReadBuffer(64 << 10)
		c.SetWriteBuffer(64 << 10)
	}
	b := greetingAndReady("DEALER")
	rng := rand.New(rand.NewPCG(1, 1))
	message := push(nil, rng, 100, 2000, false)
	for len(b) < 64<<20 {
		b = append(b, message...)
	}
	p.client.SetWriteDeadline(time.Now().Add(700 * time.Millisecond))
	n, err := p.client.Write(b)
	if err == nil || n > 16<<20 {
		t.Fatalf("%d bytes were taken from the sender while nobody read them (%v)", n, err)
	}
	p.client.SetWriteDeadline(time.Time{})
	require.NoError(t, transferRest(p, b, n))
	p.server.Close()
	p.wait(t)
}

func TestContextEndsTheConnection(t *testing.T) {
	client, job := tcpPair(t)
	far, server := tcpPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{Job: job, Far: far, Sender: &plainCodec{never: true}, Receiver: &plainCodec{}}
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := c.Run(ctx, NewMemory(0)); reason.Of(err) != reason.Stopped {
		t.Errorf("ended by %v", err)
	}
	for _, end := range []net.Conn{client, server} {
		if _, err := end.Read(make([]byte, 1)); err == nil {
			t.Error("an end is still open")
		}
	}
}
