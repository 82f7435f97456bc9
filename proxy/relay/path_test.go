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

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// tcpPair returns both ends of a TCP connection over loopback.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	dialed := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	accepted := require.Value(l.Accept())(t)
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
		case <-time.After(time.Minute):
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
			b = zmtp.AppendCommand(b, zmtp.CommandPing, []byte("\x00\x0acontext"))
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

// transferRest sends b[n:], of which the rest was sent before, and checks all.
func transferRest(p *path, b []byte, n int) error {
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
