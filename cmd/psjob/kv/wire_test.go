package kv

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// listener is a server that only listens: it registers by hand and keeps the
// frames of what a worker sends.
type listener struct {
	l      net.Listener
	frames chan [][]byte
}

func (s *listener) register(ctx context.Context, scheduler string) (net.Conn, error) {
	nc, err := net.Dial("tcp", scheduler)
	if err != nil {
		return nil, err
	}
	conn, err := zmtp.Handshake(ctx, nc, zmtp.Config{SocketType: "DEALER"})
	if err != nil {
		return nil, err
	}
	var m pslite.Meta
	m.Reset()
	m.CustomerID, m.Timestamp = pslite.Empty, 0
	m.Control = pslite.Control{Cmd: pslite.AddNode, Nodes: []pslite.Node{{Role: pslite.Server, ID: pslite.Empty,
		Hostname: "127.0.0.1", Port: int32(s.l.Addr().(*net.TCPAddr).Port)}}}
	return nc, errors.Join(conn.Queue(m.Append(nil, pslite.DMLC)), conn.Flush())
}

func (s *listener) serve(ctx context.Context) error {
	var group errgroup.Group
	for {
		nc, err := s.l.Accept()
		if err != nil {
			return group.Wait()
		}
		group.Go(func() error {
			defer nc.Close()
			conn, err := zmtp.Handshake(ctx, nc, zmtp.Config{SocketType: "ROUTER"})
			if err != nil {
				return err
			}
			stop := context.AfterFunc(ctx, func() { nc.Close() })
			defer stop()
			for {
				var m zmtp.Message
				if conn.ReadMessage(&m) != nil {
					return nil
				}
				if string(conn.Peer().Identity) == "ps9" {
					s.frames <- m.Frames
				}
			}
		})
	}
}

// What psjob sends must be, byte for byte, what PS-lite's writer makes of the
// same request, and package pslite must read it as what was meant.
func TestOnTheWire(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &listener{frames: make(chan [][]byte, 10)}
	var err error
	s.l, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var group errgroup.Group
	defer func() {
		cancel()
		s.l.Close()
		_ = group.Wait()
	}()
	group.Go(func() error { return s.serve(ctx) })
	config := van.Config{Servers: 1, Workers: 1, Root: "127.0.0.1", RootPort: freePort(t, "127.0.0.1"), NodeHost: "127.0.0.1", Patience: 20 * time.Second}
	group.Go(func() error {
		c := config
		c.Role = pslite.Scheduler
		v, err := van.Start(ctx, c)
		if err != nil {
			return err
		}
		<-ctx.Done()
		return v.Stop(context.Background())
	})
	var conn net.Conn
	require.Await(t, "the scheduler listens", func() (err error) {
		conn, err = s.register(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(config.RootPort)))
		return err
	})
	defer conn.Close()
	config.Role = pslite.Worker
	v := require.Value(van.Start(ctx, config))(t)
	defer func() {
		cancel()
		_ = v.Stop(context.Background())
	}()
	w := require.Value(NewWorker(v, 0, 0, nil))(t)

	keys, vals, lens := []uint64{3, 1 << 40, 1<<64 - 3}, []float32{1.5, -2, 3, 4}, []int32{2, 0, 2}
	for _, tc := range []struct {
		name       string
		send       func() error
		push, pull bool
		lens       []int32
		vals       []float32
		head       int32
		priority   int32
	}{
		{"scalar push", func() error { _, err := w.Push(ctx, Request{Keys: keys, Vals: vals[:3]}); return err }, true, false, nil, vals[:3], 0, 0},
		{"push with lengths", func() error {
			_, err := w.Push(ctx, Request{Keys: keys, Vals: vals, Lens: lens, Head: 1, Priority: 7})
			return err
		}, true, false, lens, vals, 1, 7},
		{"pull", func() error { _, err := w.Pull(ctx, Request{Keys: keys, Out: make([]float32, 6)}); return err }, false, true, nil, nil, 0, 0},
		{"push and pull", func() error {
			_, err := w.PushPull(ctx, Request{Keys: keys, Vals: vals[:3], Out: make([]float32, 3), Head: -5})
			return err
		}, true, true, nil, vals[:3], -5, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.NoError(t, tc.send())
			frames := <-s.frames
			var det pslite.Detector
			var m pslite.Message
			if d, err := m.Decode(&det, frames); err != nil || d != pslite.DMLC {
				t.Fatalf("dialect %v: %v", d, err)
			}
			if err := m.Check(); err != nil {
				t.Error(err)
			}
			if got := m.Keys().AppendTo(nil); !slices.Equal(got, keys) {
				t.Errorf("keys %v", got)
			}
			var got []float32
			for i := range m.Values().Len() {
				got = append(got, m.Values().Float32(i))
			}
			if !slices.Equal(got, tc.vals) || m.Values().Type != pslite.Float {
				t.Errorf("values %v of type %v", got, m.Values().Type)
			}
			if m.Lens().Len() != len(tc.lens) || (tc.lens != nil && m.Lens().At(2) != 2) {
				t.Errorf("lengths %v", m.Lens())
			}
			size := 8*len(keys) + 4*len(tc.vals) + 4*len(tc.lens)
			if want := pushMeta(m.Meta.Timestamp, tc.head, tc.priority, tc.push, tc.pull, tc.lens != nil, size); !bytes.Equal(frames[0], want) {
				t.Errorf("meta frame\n got % x\nwant % x", frames[0], want)
			}
		})
	}
}

// pushMeta writes a request's meta frame field by field, as van.cc's PackMeta
// fills the protobuf.
func pushMeta(timestamp, head, priority int32, push, pull, lens bool, size int) []byte {
	var b []byte
	number := func(field protowire.Number, v int64) {
		b = protowire.AppendTag(b, field, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(v))
	}
	truth := func(field protowire.Number, v bool) { number(field, int64(protowire.EncodeBool(v))) }
	number(1, int64(head))
	truth(4, true)
	truth(5, push)
	truth(6, false)
	number(7, 0)
	number(8, int64(timestamp))
	types := []byte{byte(pslite.Uint64), byte(pslite.Float)}
	if lens {
		types = append(types, byte(pslite.Int32))
	}
	b = protowire.AppendTag(b, 9, protowire.BytesType)
	b = protowire.AppendBytes(b, types)
	number(10, 0)
	number(11, int64(size))
	truth(12, pull)
	number(13, int64(priority))
	return b
}
