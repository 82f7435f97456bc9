package jobs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// halts is what a worker says, in messages of several sizes.
func halts(rng *rand.Rand) []byte {
	g := zmtp.NewGreeting(0, 0)
	b := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
	for range 600 {
		meta := pslite.Meta{Request: true, Push: true, Timestamp: int32(rng.IntN(100)), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
		b = append(b, appendMessage(nil, [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 8*rng.IntN(50)), make([]byte, 4*rng.IntN(60<<10))})...)
	}
	return b
}

// A connection changes links between two messages, wherever it was in them; with
// what was left it goes on, with the next line of the same sender too, and no byte is lost.
func TestConnectionGoesOnOverAnotherLink(t *testing.T) {
	times, connections := 0, uint64(0)
	for ; times < 10 && connections < 50 && !t.Failed(); connections++ {
		times += goesOn(t, connections)
	}
	if t.Logf("%d connections changed links %d times", connections, times); times < 10 {
		t.Errorf("%d connections changed links %d times", connections, times)
	}
}

// goesOn has a connection change links as often as it can, and returns how often that was.
func goesOn(t *testing.T, seed uint64) (times int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	want := halts(rng)
	ready := zmtp.AppendReady(nil, "DEALER", []byte("ps9"))[2:] // without its header
	j := jobsIn(t, t.TempDir())
	line := j.outbound(serverAt, Scope{}, "here")
	line.receptive = true
	m := newMesh(t, line)
	m.carry(t)
	sayTo(t, m.destination, greetingOf("ROUTER", ""))
	expect(t, m.process, "a greeting", greetingOf("ROUTER", ""))
	sent := make(chan error, 1)
	go func() {
		pieces := rand.New(rand.NewPCG(3, 4))
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 1+pieces.IntN(40<<10))
			if _, err := m.process.Write(rest[:n]); err != nil {
				sent <- err
				return
			}
			rest = rest[n:]
		}
		sent <- m.process.CloseWrite()
	}()
	var got bytes.Buffer
	all := make(chan error, 1)
	var count atomic.Int64
	go func() {
		_, err := io.Copy(io.MultiWriter(&got, counter{&count}), m.destination)
		m.destination.CloseWrite()
		all <- err
	}()
	for {
		until := count.Load() + rng.Int64N(400<<10)
		for count.Load() < until && len(all) == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if times%3 != 0 { // in the next proxy
			next := require.Value(j.ResumeOutbound(serverAt, Scope{}, "here", ready))(t)
			if line = next.(*requests); line.sender != 9 {
				t.Fatalf("it is of node %d, want 9", line.sender)
			}
		}
		if !m.pass(t, line) {
			break
		}
		times++
		m.carry(t)
	}
	if err := errors.Join(<-sent, <-all); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes came of %d, or others: %v", got.Len(), len(want), err)
	}
	return times
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// Once a connection to a process was left, nothing more is written to it, and nothing
// that was is cut.
func TestLeftConnectionIsWrittenWhole(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	for range 10 {
		client, accepted := connected(t)
		next := require.Value(j.ResumeInbound(serverAt, Scope{}, nil, nil))(t)
		c := next.(*answers)
		message := appendMessage(nil, [][]byte{make([]byte, 3000)})
		put, some := make(chan int, 1), make(chan struct{})
		go func() {
			n := 0
			for n < 200 && c.enqueue(message) {
				if n++; n == 20 {
					close(some)
				}
			}
			put <- n
		}()
		<-some
		read := make(chan int, 1)
		go func() {
			got, _ := io.ReadAll(client)
			read <- len(got)
		}()
		require.NoError(t, c.Leave(accepted))
		want := len(message) * <-put
		require.NoError(t, accepted.CloseWrite())
		if got := <-read; got != want {
			t.Fatalf("%d bytes came of %d", got, want)
		}
		c.Close()
	}
}

// A process that reads nothing keeps no proxy from ending.
func TestLeaveWhereNobodyReads(t *testing.T) {
	next := require.Value(jobsIn(t, t.TempDir()).ResumeInbound(serverAt, Scope{}, nil, nil))(t)
	c := next.(*answers)
	_, to := connected(t)
	c.enqueue(appendMessage(nil, [][]byte{make([]byte, 64<<20)}))
	if err := c.Leave(to); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it was left with %v", err)
	}
	if c.enqueue(nil) {
		t.Error("more can be put in")
	}
	if left := c.retire(); len(left) != 1 {
		t.Errorf("%d messages wait for the next connection, want the one that was cut short", len(left))
	}
}
