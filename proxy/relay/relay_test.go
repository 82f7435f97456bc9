package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plainCodec encodes by a seeded whim: some messages not at all, others with any
// choice of frames in the head, inverted so that nothing of the original can
// slip through.
type plainCodec struct {
	rng     *rand.Rand
	never   bool
	holds   bool // half of the large messages are wanted whole
	held    int
	shown   int
	ready   string // the identity in the READY command
	frames  [][]byte
	corrupt bool
	faulty  bool // panics
}

func (c *plainCodec) Encode(dst []byte, m *Message) ([]byte, uint32, bool) {
	c.shown++
	if c.never || c.rng.IntN(4) == 0 {
		return append(dst, "forgotten"...), 0, false
	}
	plain := c.rng.Uint32() & (1<<len(m.Frames) - 1)
	dst = append(dst, byte(len(m.Frames)), byte(plain))
	for i, f := range m.Frames {
		if plain&(1<<i) != 0 {
			continue
		}
		n := len(f)
		dst = append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
		for _, b := range f {
			dst = append(dst, ^b)
		}
	}
	return dst, plain, true
}

func (c *plainCodec) Hold(m *Message) bool {
	wanted := c.holds && m.Rest && c.rng.IntN(2) == 0
	if wanted {
		c.held++
	}
	return wanted
}

func (c *plainCodec) Ready(r zmtp.Ready) { c.ready = string(r.Identity) }

func (c *plainCodec) Decode(head []byte) ([][]byte, uint32, error) {
	if c.faulty {
		panic("a fault of the codec")
	}
	if c.corrupt || len(head) < 2 {
		return nil, 0, errors.New("corrupt")
	}
	n, plain := int(head[0]), uint32(head[1])
	head = head[2:]
	c.frames = c.frames[:0]
	for i := range n {
		if plain&(1<<i) != 0 {
			c.frames = append(c.frames, nil)
			continue
		}
		if len(head) < 4 {
			return nil, 0, errors.New("corrupt")
		}
		size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16 | int(head[3])<<24
		if size > len(head)-4 {
			return nil, 0, errors.New("corrupt")
		}
		f := head[4 : 4+size]
		for k := range f {
			f[k] = ^f[k]
		}
		c.frames = append(c.frames, f) // in the input's buffer, as a codec may
		head = head[4+size:]
	}
	return c.frames, plain, nil
}

func (c *plainCodec) Close() {}

// tcpPair returns both ends of a TCP connection over loopback.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}

// path is a job's connection through two relays.
type path struct {
	client, server   *net.TCPConn
	dialer, acceptor *Conn
	ended            chan error // two: the dialer's, the acceptor's
}

func newPath(t testing.TB, seed uint64, memory *Memory, change func(sender, receiver *plainCodec)) *path {
	p := &path{ended: make(chan error, 2)}
	var nearJob, linkA, linkB, farJob *net.TCPConn
	p.client, nearJob = tcpPair(t)
	linkA, linkB = tcpPair(t)
	farJob, p.server = tcpPair(t)
	codec := func(n uint64) *plainCodec { return &plainCodec{rng: rand.New(rand.NewPCG(seed, n))} }
	up, down, upR, downR := codec(1), codec(2), codec(3), codec(4)
	if change != nil {
		change(up, upR)
		change(down, downR)
	}
	p.dialer = &Conn{Job: nearJob, Far: linkA, Sender: up, Receiver: downR}
	p.acceptor = &Conn{Job: farJob, Far: linkB, Sender: down, Receiver: upR}
	for _, c := range []*Conn{p.dialer, p.acceptor} {
		go func() { p.ended <- c.Run(context.Background(), memory) }()
	}
	return p
}

// wait returns how the two relays ended.
func (p *path) wait(t testing.TB) (errs [2]error) {
	t.Helper()
	for i := range errs {
		select {
		case errs[i] = <-p.ended:
		case <-time.After(20 * time.Second):
			t.Fatal("a relay did not end")
		}
	}
	return errs
}

// writeCut writes b in random pieces.
func writeCut(w io.Writer, b []byte, rng *rand.Rand) error {
	for len(b) > 0 {
		n := 1 + rng.IntN(min(len(b), 1<<rng.IntN(18)))
		if _, err := w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func greetingAndReady(socket string) []byte {
	g := zmtp.NewGreeting(1, 3)
	return zmtp.AppendReady(bytes.Clone(g[:]), socket, []byte("ps9"))
}

func appendFrame(b, body []byte, more bool) []byte {
	return append(zmtp.AppendHeader(b, zmtp.FrameHeader(len(body), more)), body...)
}

// push returns a push of n values under keys keys, of a random dialect-free
// look: with or without lens.
func push(b []byte, rng *rand.Rand, keys, vals int, lens bool) []byte {
	meta := pslite.Meta{Head: 1, Request: true, Push: true, Timestamp: int32(rng.IntN(1000)), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	body := make([]byte, max(8*keys, vals))
	for i := range body {
		body[i] = byte(rng.Uint32())
	}
	b = appendFrame(b, meta.Append(nil, pslite.DMLC), true)
	b = appendFrame(b, body[:8*keys], true)
	b = appendFrame(b, body[:vals], lens)
	if lens {
		b = appendFrame(b, body[:4*keys], false)
	}
	return b
}

// stream returns a connection's bytes: messages of all sizes, commands.
func stream(seed uint64, messages int) []byte {
	rng := rand.New(rand.NewPCG(seed, 9))
	b := greetingAndReady("DEALER")
	for range messages {
		switch rng.IntN(12) {
		case 0:
			b = zmtp.AppendPing(b, 10, []byte("context"))
		case 1:
			b = zmtp.AppendCommand(b, "UNKNOWN", []byte("whatever"))
		case 2:
			b = push(b, rng, 10, 300<<10+rng.IntN(1<<20), true) // values are streamed
		case 3:
			b = push(b, rng, 20<<10+rng.IntN(100<<10), 4, true) // large keys, large lens
		case 4:
			b = append(zmtp.AppendHeader(b, zmtp.Header{Flags: zmtp.Long, Size: 3}), 1, 2, 3) // not as libzmq writes it
		case 5:
			for range 12 {
				b = appendFrame(b, []byte("frame"), true)
			}
			b = appendFrame(b, nil, false)
		case 6:
			b = appendFrame(b, make([]byte, 2<<20), false)
		default:
			b = push(b, rng, rng.IntN(50), rng.IntN(5000), rng.IntN(2) == 0)
		}
	}
	return b
}

// transfer sends want from src to dst and checks that it arrives as it was,
// then that the end does.
func transfer(src, dst *net.TCPConn, want []byte, rng *rand.Rand) error {
	sent := make(chan error, 1)
	go func() {
		err := writeCut(src, want, rng)
		if err == nil {
			err = src.CloseWrite()
		}
		sent <- err
	}()
	sum := sha256.New()
	n, err := io.Copy(sum, dst)
	if err := errors.Join(err, <-sent); err != nil {
		return err
	}
	if wanted := sha256.Sum256(want); n != int64(len(want)) || !bytes.Equal(sum.Sum(nil), wanted[:]) {
		return fmt.Errorf("%d bytes came of %d, or others", n, len(want))
	}
	return nil
}

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
		"empty": {}, "http": []byte("GET / HTTP/1.1\r\n\r\n"), "random": random,
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

// Where memory is at its bound, messages pass without being held.
func TestNoMemoryMeansNotEncoded(t *testing.T) {
	p := newPath(t, 1, NewMemory(0), func(_, receiver *plainCodec) {})
	rng := rand.New(rand.NewPCG(1, 1))
	b := greetingAndReady("DEALER")
	b = push(b, rng, 5, 20, false)
	b = push(b, rng, 50<<10, 4, false)
	if err := transfer(p.client, p.server, b, rng); err != nil {
		t.Fatal(err)
	}
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
			if err := transfer(client, server, b, rng); err != nil {
				t.Fatal(err)
			}
			server.Close()
			<-ended
			if s.whole != c.whole || s.part != c.part || conn.ToFar.Counts().Unheld != c.unheld {
				t.Errorf("%d messages shown whole, %d in part, %d not held; want %d, %d, %d", s.whole, s.part, conn.ToFar.Counts().Unheld, c.whole, c.part, c.unheld)
			}
		})
	}
}

// wholeSender wants all messages whole and encodes none.
type wholeSender struct{ whole, part int }

func (s *wholeSender) Hold(*Message) bool { return true }
func (s *wholeSender) Close()             {}
func (s *wholeSender) Encode(dst []byte, m *Message) ([]byte, uint32, bool) {
	if m.Rest {
		s.part++
	} else {
		s.whole++
	}
	return dst, 0, false
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
		if _, err := io.ReadFull(p.server, make([]byte, len(first))); err != nil {
			t.Fatal(err)
		}
		Reset(p.client)
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
	if err := transfer2(p, b, n); err != nil {
		t.Fatal(err)
	}
	p.server.Close()
	p.wait(t)
}

// transfer2 sends b[n:], of which the rest was sent before, and checks all.
func transfer2(p *path, b []byte, n int) error {
	go func() {
		p.client.Write(b[n:])
		p.client.CloseWrite()
	}()
	got, err := io.ReadAll(p.server)
	if err == nil && !bytes.Equal(got, b) {
		err = errors.New("other bytes came than were sent")
	}
	return err
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
