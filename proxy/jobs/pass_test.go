package jobs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// halts is what a worker says, in messages of several sizes.
func halts(rng *rand.Rand) []byte {
	g := zmtp.NewGreeting(0, 0)
	b := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
	for range 300 {
		meta := pslite.Meta{Request: true, Push: true, Timestamp: int32(rng.IntN(100)), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
		b = append(b, appendMessage(nil, [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 8*rng.IntN(50)), make([]byte, 4*rng.IntN(60<<10))})...)
	}
	return b
}

// A connection that is halted ends between two messages, wherever it was in them; with
// what was left another one goes on, as of the same sender, and no byte is lost.
func TestHaltedConnectionGoesOn(t *testing.T) {
	client, accepted := connected(t)
	rng := rand.New(rand.NewPCG(1, 2))
	want := halts(rng)
	ready := zmtp.AppendReady(nil, "DEALER", []byte("ps9"))[2:] // without its header
	sent := make(chan error, 1)
	go func() {
		pieces := rand.New(rand.NewPCG(3, 4))
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 1+pieces.IntN(40<<10))
			if _, err := client.Write(rest[:n]); err != nil {
				sent <- err
				return
			}
			rest = rest[n:]
		}
		sent <- client.(interface{ CloseWrite() error }).CloseWrite()
	}()
	destination := netip.MustParseAddrPort("10.0.0.2:9001")
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c := j.Outbound(accepted, destination, Scope{}, "here").(*requests)
	c.far.done.Store(true)
	var got bytes.Buffer
	times := 0
	for {
		until := got.Len() + rng.IntN(400<<10)
		p := make([]byte, 1+rng.IntN(64<<10))
		halted := false
		for err == nil {
			if !halted && got.Len() >= until {
				halted = true
				c.Halt()
			}
			var n int
			n, err = c.Read(p)
			got.Write(p[:n])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if !c.Halted() || !c.stream.between() {
			t.Fatalf("after %d bytes: %v", got.Len(), err)
		}
		if times++; times%3 == 0 { // here, over another link
			c.GoOn(nil)
			err = nil
			continue
		}
		left, failed := c.Leave()
		if failed != nil {
			t.Fatal(failed)
		}
		next, failed := j.ResumeOutbound(accepted, destination, Scope{}, "here", ready, left)
		if c, err = next.(*requests), failed; c.sender != 9 {
			t.Fatalf("it is of node %d, want 9", c.sender)
		}
	}
	if err := <-sent; err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes came of %d, or others: %v", got.Len(), len(want), err)
	}
	if t.Logf("halted %d times", times); times < 10 {
		t.Errorf("halted %d times", times)
	}
}

// Once a connection to a process was left, nothing more is written to it, and nothing
// that was is cut.
func TestLeftConnectionIsWrittenWhole(t *testing.T) {
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		client, accepted := connected(t)
		next, err := j.ResumeInbound(accepted, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := next.(*answers)
		message := appendMessage(nil, [][]byte{make([]byte, 3000)})
		put := make(chan int, 1)
		go func() {
			n := 0
			for n < 200 && c.enqueue(message) {
				n++
			}
			put <- n
		}()
		time.Sleep(time.Millisecond)
		read := make(chan int, 1)
		go func() {
			got, _ := io.ReadAll(client)
			read <- len(got)
		}()
		if _, err := c.Leave(); err != nil {
			t.Fatal(err)
		}
		want := len(message) * <-put
		if err := accepted.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got := <-read; got != want {
			t.Fatalf("%d bytes came of %d", got, want)
		}
		c.Close()
	}
}

// unread is a connection to a process that reads nothing, as it goes on after another
// proxy.
func unread(t *testing.T) (c *answers, to *net.TCPConn) {
	t.Helper()
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	_, to = connected(t)
	next, err := j.ResumeInbound(to, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { next.Close() })
	return next.(*answers), to
}

// A process that reads nothing keeps no proxy from ending.
func TestLeaveWhereNobodyReads(t *testing.T) {
	c, _ := unread(t)
	c.enqueue(appendMessage(nil, [][]byte{make([]byte, 64<<20)}))
	if _, err := c.Leave(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it was left with %v", err)
	}
	if c.enqueue(nil) {
		t.Error("more can be put in")
	}
}

// Nor is it told that all was written where another goroutine's write was cut short.
func TestLeaveAfterATornWrite(t *testing.T) {
	c, to := unread(t)
	if err := to.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	c.enqueue(appendMessage(nil, [][]byte{make([]byte, 64<<20)}))
	c.writers.Wait()
	if _, err := c.Leave(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it was left with %v", err)
	}
	if _, err := c.Write(appendMessage(nil, [][]byte{nil})); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a part of a message another was written: %v", err)
	}
}
