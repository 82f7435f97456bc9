package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/replay"
	"github.com/psidecar/psidecar/test/require"
)

// A recorded job is sent again over real connections, each byte in a segment
// of its own. The agent counts what the recording holds.
func TestOneByteSegments(t *testing.T) {
	for _, name := range []string{"dmlc-kv-2s2w.pcapng", "byteps-kv-2s2w.pcapng"} {
		t.Run(name, func(t *testing.T) {
			path := require.Capture(t, name)
			on := hoststest.New(t, hosts.Config{Hosts: 1})
			enter(t, on.Host(0))
			w := watch(t, on.Cgroup())
			p := player{t: t, host: on.Host(0), clients: clientsOf(t, path), conns: map[capture.Flow]*net.TCPConn{}}
			defer p.close()
			a := capture.NewAssembler(p.open)
			each(t, path, func(s *capture.Segment) { a.Add(s) })
			a.Close()
			p.close()
			counters := w.Agent.Agent().Counters
			require.NoError(t, w.stop())
			w.nothingLost(t, counters)

			o := observe.New(observe.Options{Locality: counts.DefaultLocalityOptions})
			f, err := os.Open(path)
			require.NoError(t, err)
			defer f.Close()
			if _, err := replay.Read(f, o.Handle); err != nil {
				t.Fatal(err)
			}
			got, want := w.Jobs(), o.Jobs()
			if len(got) != 1 || len(want) != 1 || got[0].Bytes != want[0].Job.Sums.Totals().Bytes {
				t.Fatalf("%d jobs, want %d with %d bytes: %+v", len(got), len(want), want[0].Job.Sums.Totals().Bytes, got)
			}
			sameCounts(t, w, got[0].Name, &want[0])
		})
	}
}

// sameCounts compares the agent's counts of every key with another's.
func sameCounts(t *testing.T, w *watcher, job string, v *observe.JobView) {
	t.Helper()
	got := w.keysOf(t, job)
	for index, worker := range v.WorkersByIndex {
		n := 0
		for _, b := range v.Job.Sums.Table.Blocks(0, math.MaxUint64, math.MaxInt32) {
			s := b.Workers[index]
			a := got[worker][b.First]
			if (counts.Sums{a.Pulls, a.Pushes, a.PullBytes, a.PushBytes}) != s {
				t.Fatalf("%s, key %d: %+v, want %v", worker, b.First, a, s)
			}
			n += int(page.Accesses.Of(s))
		}
		if n == 0 {
			t.Errorf("%s did nothing", worker)
		}
	}
}

// enter moves this process into the host's cgroup until the test ends, so that
// its sockets are seen there.
func enter(t *testing.T, h *hosts.Host) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	before := ""
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			before = filepath.Join(require.CgroupV2(t), path)
		}
	}
	group, err := h.Group("player")
	require.NoError(t, err)
	move := func(group string) error {
		return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o600)
	}
	require.NoError(t, move(group))
	t.Cleanup(func() {
		if err := move(before); err != nil {
			t.Errorf("leaving the cgroup: %v", err)
		}
	})
}

func each(t *testing.T, path string, handle func(*capture.Segment)) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	if _, err := capture.Segments(f, func(s *capture.Segment) error { handle(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

// clientsOf returns the flows of those that opened connections.
func clientsOf(t *testing.T, path string) map[capture.Flow]bool {
	t.Helper()
	clients := map[capture.Flow]bool{}
	each(t, path, func(s *capture.Segment) {
		if s.SYN && !s.ACK {
			clients[s.Flow] = true
		}
	})
	return clients
}

// player sends recorded bytes on connections of the recorded addresses.
type player struct {
	t       *testing.T
	host    *hosts.Host
	clients map[capture.Flow]bool
	conns   map[capture.Flow]*net.TCPConn // what sends that flow
	reading sync.WaitGroup
}

func (p *player) open(f capture.Flow, _ bool) capture.Sink {
	if p.conns[f] == nil {
		client := f
		if !p.clients[f] {
			client = f.Reverse()
		}
		if err := p.connect(client); err != nil {
			p.t.Fatalf("%v: %v", client, err)
		}
	}
	return &playedFlow{p.t, p.conns[f]}
}

func (p *player) connect(f capture.Flow) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Minute)
	defer cancel()
	l, err := p.host.Listen(ctx, "tcp", f.Dst.String())
	if err != nil {
		return err
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			c = nil
		}
		accepted <- c
	}()
	var dialled net.Conn
	err = p.host.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(f.Src), Control: reuse}
		dialled, err = d.DialContext(ctx, "tcp", f.Dst.String())
		return err
	})
	if err != nil {
		return err
	}
	server := <-accepted
	if server == nil {
		return errors.New("not accepted")
	}
	for flow, c := range map[capture.Flow]net.Conn{f: dialled, f.Reverse(): server} {
		p.conns[flow] = c.(*net.TCPConn)
		p.reading.Go(func() { io.Copy(io.Discard, c) })
	}
	return nil
}

func reuse(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	})
	return errors.Join(err, failed)
}

// close waits until all that was sent has come.
func (p *player) close() {
	for _, c := range p.conns {
		if err := c.CloseWrite(); err != nil {
			p.t.Errorf("closing: %v", err)
		}
	}
	p.reading.Wait()
	for flow, c := range p.conns {
		c.Close()
		delete(p.conns, flow)
	}
}

type playedFlow struct {
	t    *testing.T
	conn *net.TCPConn
}

// Bytes implements capture.Sink.
func (f *playedFlow) Bytes(_ time.Time, b []byte) {
	if err := hoststest.WriteSegments(f.conn, b, 1); err != nil {
		f.t.Error(fmt.Errorf("sending: %w", err))
	}
}

// Gap implements capture.Sink.
func (f *playedFlow) Gap(_ time.Time, n uint64) { f.t.Errorf("the recording lacks %d bytes", n) }

// End implements capture.Sink.
func (f *playedFlow) End() {}
