package bpf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// job returns a stream of n messages whose values have that many bytes.
func (m *streamMaker) job(n, values int) []byte {
	greeting := zmtp.NewGreeting(1, 0)
	b := zmtp.AppendReady(append([]byte{}, greeting[:]...), "DEALER", []byte("ps9"))
	for range n {
		b = m.push(b, values)
	}
	return b
}

// push appends one push request with about as many keys as fit its values.
func (m *streamMaker) push(b []byte, values int) []byte {
	b = m.frame(b, m.dmlcMeta(true, true, true), true)
	b = m.frame(b, m.bytes(8*min(1+values/64, 2000)), true)
	h := zmtp.FrameHeader(values, false)
	b = zmtp.AppendHeader(b, h)
	for values > 0 {
		n := min(values, 1<<16)
		b = append(b, m.bytes(n)...)
		values -= n
	}
	return b
}

// watched is a capture that is read into transcripts until stop.
type watched struct {
	*Capture
	t      *testing.T
	seen   map[StreamID]*transcript
	cancel context.CancelFunc
	group  errgroup.Group
}

func watchCgroup(t *testing.T, cgroup string, o Options) *watched {
	t.Helper()
	w := &watched{Capture: openTest(t, o), t: t, seen: map[StreamID]*transcript{}}
	require.NoError(t, w.Attach(cgroup))
	w.read()
	return w
}

func (w *watched) read() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.group.Go(func() error {
		for {
			err := w.Read(ctx, func(r *Record) {
				s := w.seen[r.Stream]
				if s == nil {
					s = &transcript{}
					w.seen[r.Stream] = s
				}
				s.add(r)
			})
			if err != nil {
				return err
			}
		}
	})
	w.t.Cleanup(cancel)
}

// stop reads the remaining records and returns the only stream's transcript and
// totals.
func (w *watched) stop() (*transcript, Stream) {
	w.t.Helper()
	w.cancel()
	if err := w.group.Wait(); !errors.Is(err, context.Canceled) {
		w.t.Fatalf("reading: %v", err)
	}
	streams := require.Value(w.Streams())(w.t)
	if len(streams) != 1 || len(w.seen) != 1 {
		w.t.Fatalf("%d streams, %d transcripts; want one: %+v", len(streams), len(w.seen), streams)
	}
	return w.seen[streams[0].ID], streams[0]
}

// transfer is a sender in a host's cgroup, fed through a pipe, and a receiver
// outside of it.
type transfer struct {
	io.WriteCloser // to the sender
	t              testing.TB
	process        *hosts.Process
	errors         *bytes.Buffer
	group          errgroup.Group
	received       int64
}

// startTransfer has a process on from send to a listener on to.
func startTransfer(t testing.TB, from, to *hosts.Host, address string, size int) *transfer {
	t.Helper()
	l, err := to.Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	x := &transfer{t: t, errors: new(bytes.Buffer)}
	x.group.Go(func() error {
		defer l.Close()
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		x.received, err = io.Copy(io.Discard, conn)
		return err
	})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", senderVariable, l.Addr(), size))
	cmd.Stderr = x.errors
	x.WriteCloser, err = cmd.StdinPipe()
	require.NoError(t, err)
	if x.process, err = from.Start(cmd); err != nil {
		l.Close()
		t.Fatal(err)
	}
	return x
}

// finish ends the stream and waits until all of it has arrived.
func (x *transfer) finish() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), 2*time.Minute)
	defer cancel()
	if err := errors.Join(x.Close(), x.process.Wait(ctx), x.group.Wait()); err != nil {
		x.t.Fatalf("%v: %s", err, x.errors)
	}
}

func (x *transfer) send(b []byte) {
	x.t.Helper()
	if _, err := x.Write(b); err != nil {
		x.t.Fatalf("%v: %s", err, x.errors)
	}
}

// TestLiveProcessesAreToldExactly: the messages of real processes, in every kind of
// segment, are reported exactly, and the totals add up.
func TestLiveProcessesAreToldExactly(t *testing.T) {
	m := newStreamMaker(7)
	small := m.job(20_000, 4)
	large := m.job(64, 1<<20)
	for _, tc := range []struct {
		name       string
		stream     []byte
		write      int
		ipv6       bool
		loopback   bool
		faults     hoststest.Faults
		bigSegment bool
	}{
		{name: "IPv4", stream: small, write: 8192},
		{name: "IPv6", stream: small, write: 8192, ipv6: true},
		{name: "one byte a segment", stream: m.job(40, 4), write: 1},
		{name: "loopback, small messages in large segments", stream: small, write: 1 << 20, loopback: true, bigSegment: true},
		{name: "loopback, large messages", stream: large, write: 1 << 20, loopback: true, bigSegment: true},
		{name: "lossy link", stream: small[:len(small)/4], write: 8192, faults: hoststest.Faults{Drop: 0.02, Duplicate: 0.02, Seed: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: 2})
			from, to := n.Host(0), n.Host(1)
			if tc.loopback {
				to = from
			}
			hoststest.Inject(t, from, tc.faults)
			address := to.IPv4.String()
			if tc.ipv6 {
				address = to.IPv6.String()
			}
			w := watchCgroup(t, from.Cgroup(), Options{})
			x := startTransfer(t, from, to, address, tc.write)
			x.send(tc.stream)
			x.finish()
			got, totals := w.stop()
			want, commands, _, err := readStream(tc.stream, false)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			if diff := got.differ(want, commands); diff != "" {
				t.Fatalf("%.2000s", diff)
			}
			t.Logf("%d segments of %d bytes on average, %d bytes retransmitted", totals.Segments, totals.Bytes/totals.Segments, totals.Retransmitted)
			if totals.Bytes != uint64(len(tc.stream)) || totals.Messages != uint64(len(want)) || totals.Missed != 0 || totals.Late {
				t.Errorf("totals %+v; want %d bytes, %d messages", totals, len(tc.stream), len(want))
			}
			if tc.bigSegment && totals.Bytes/totals.Segments < 30_000 {
				t.Errorf("segments of %d bytes on average are no test of large ones", totals.Bytes/totals.Segments)
			}
			if tc.faults.Drop > 0 && totals.Retransmitted == 0 {
				t.Error("nothing was retransmitted")
			}
			counts := require.Value(w.Counts())(t)
			if lost := counts.Lost(); lost.Events != 0 {
				t.Errorf("lost: %v", counts)
			}
		})
	}
}
