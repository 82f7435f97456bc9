package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// newStagedPath returns a path with stages for what the client sends.
func newStagedPath(t *testing.T, seed uint64, codec bool, memory *Memory, outbound, inbound Stage) *path {
	p := &path{ended: make(chan error, 2)}
	p.dialer, p.acceptor = &Conn{Outbound: outbound}, &Conn{Inbound: inbound}
	nearJob, farJob := p.dialer, p.acceptor
	p.client, nearJob.Job = asConn(tcpPair(t))
	nearJob.Far, farJob.Far = tcpPair(t)
	p.server, farJob.Job = asConn(tcpPair(t))
	if codec {
		random := func(n uint64) *plainCodec { return &plainCodec{rng: rand.New(rand.NewPCG(seed, n))} }
		p.dialer.Sender, p.dialer.Receiver = random(1), random(2)
		p.acceptor.Sender, p.acceptor.Receiver = random(3), random(4)
	}
	for _, c := range []*Conn{p.dialer, p.acceptor} {
		go func() { p.ended <- c.Run(context.Background(), memory) }()
	}
	return p
}

// Stages at both ends take what they want, whole, and nothing else; what they put in stands between
// two messages; the rest comes as it was, in order.
func TestStagesTakeAndPutIn(t *testing.T) {
	for seed := range uint64(8) {
		outbound, inbound := newSieve(2), newSieve(4)
		outbound.waits = seed%4 > 1
		p := newStagedPath(t, seed, seed%2 == 0, NewMemory(64<<20), outbound, inbound)
		messages := numbered(seed, 120)
		sent := zmtp.AppendCommand(greetingAndReady("DEALER"), "SECRET", []byte("for a stage"))
		want := [3][]byte{greetingAndReady("DEALER")} // at the server, taken by outbound, by inbound
		for i, m := range messages {
			sent = append(sent, m...)
			to := 0
			if outbound.takes(int32(i)) {
				to = 1
			} else if inbound.takes(int32(i)) {
				to = 2
			}
			want[to] = append(want[to], m...)
		}
		var speaking sync.WaitGroup
		said := [2]int32{}
		for i, s := range []*sieve{outbound, inbound} {
			speaking.Go(func() {
				for said[i] < 40 && s.say(own(int32(i+1)*100000+said[i])) {
					said[i]++
				}
			})
		}
		speaking.Go(func() {
			if err := writeCut(p.client, sent, rand.New(rand.NewPCG(seed, 6))); err != nil {
				t.Error(err)
			}
			speaking.Go(func() { io.Copy(io.Discard, p.client) })
			p.client.CloseWrite()
		})
		speaking.Go(func() {
			if err := writeCut(p.server, greetingAndReady("ROUTER"), rand.New(rand.NewPCG(seed, 7))); err != nil {
				t.Error(err)
			}
		})
		got, err := io.ReadAll(p.server)
		p.server.CloseWrite()
		speaking.Wait()
		if errs := p.wait(t); errs != [2]error{} || err != nil {
			t.Fatalf("seed %d: %v, %v", seed, errs, err)
		}
		rest, owns := apart(t, got)
		if !bytes.Equal(rest, want[0]) {
			t.Errorf("seed %d: %d bytes came to the server, otherwise than %d", seed, len(rest), len(want[0]))
		}
		for i, s := range []*sieve{outbound, inbound} {
			if b := slices.Concat(s.taken...); !bytes.Equal(b, want[i+1]) {
				t.Errorf("seed %d: stage %d took %d bytes, otherwise than %d", seed, i, len(b), len(want[i+1]))
			}
			if n := int32(len(owns[i])); n != said[i] || !slices.IsSorted(owns[i]) {
				t.Errorf("seed %d: stage %d said %d messages, %d came", seed, i, said[i], n)
			}
			for at, n := range s.inspected {
				if n != 1 {
					t.Errorf("seed %d: stage %d decided %d times about message %d", seed, i, n, at)
				}
			}
			if s.ready != "ps9" || s.closed != 1 {
				t.Errorf("seed %d: stage %d was told of %q, and was closed %d times", seed, i, s.ready, s.closed)
			}
		}
		if inbound.unsent != 0 {
			t.Errorf("seed %d: %d bytes of the stage's own were not sent", seed, inbound.unsent)
		}
	}
}

// A message that a stage may take does not pass for lack of memory: what passes does, undelayed, and
// what it takes waits, and ends the connection at last.
func TestStageWithoutMemory(t *testing.T) {
	stage := newSieve(2)
	stage.receptive = true
	memory := NewMemory(0)
	e := newEncoder(&plainCodec{never: true}, &Flow{})
	e.stage = stage
	sent := slices.Concat(greetingAndReady("DEALER"), withValues(0, 100), withValues(6, 200<<10), withValues(7, 1<<20))
	d := newPumped(e, memory)
	if got, err := d.run(t, sent); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes pass, %v", len(got), len(sent), err)
	}
	e = newEncoder(&plainCodec{never: true}, &Flow{})
	e.stage = newSieve(2)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d = newPumped(e, memory)
	d.ctx = ctx
	if _, err := d.run(t, slices.Concat(greetingAndReady("DEALER"), withValues(2, 200<<10))); reason.Of(err) != reason.Memory {
		t.Errorf("a message that is taken ends the connection with %v, want one of memory", err)
	}
}

// withValues is a message of one key.
func withValues(timestamp int32, bytes int) []byte {
	meta := pslite.Meta{Head: 1, Request: true, Push: true, Timestamp: timestamp, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char}}
	b := appendFrame(nil, meta.Append(nil, pslite.DMLC), true)
	b = appendFrame(b, make([]byte, 8), true)
	return appendFrame(b, make([]byte, bytes), false)
}

// What cannot be followed does not pass a stage that would have to route it.
func TestStageRefusesWhatItCannotFollow(t *testing.T) {
	meta := pslite.Meta{Head: 1, Request: true, Push: true, Timestamp: 2, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char}}
	first := appendFrame(nil, meta.Append(nil, pslite.DMLC), true)
	many := bytes.Clone(first)
	for range maxFrames {
		many = appendFrame(many, make([]byte, 8), true)
	}
	for name, b := range map[string][]byte{
		"keys of odd size":      appendFrame(appendFrame(bytes.Clone(first), make([]byte, 9), true), nil, false),
		"keys beyond the bound": zmtp.AppendHeader(bytes.Clone(first), zmtp.FrameHeader(maxKeys+8, true)),
		"a command inside":      zmtp.AppendCommand(appendFrame(bytes.Clone(first), make([]byte, 8), true), "OTHER", nil),
		"many frames":           appendFrame(many, nil, false),
	} {
		e := newEncoder(nil, &Flow{})
		stage := newSieve(2)
		e.stage = stage
		sent := append(greetingAndReady("DEALER"), b...)
		out, errs := pump(sent, e)
		if reason.Of(errs[0]) != reason.MalformedJob || len(stage.taken) > 0 || len(out) > len(greetingAndReady("DEALER")) {
			t.Errorf("%s: %d bytes pass, %d messages are taken, %v", name, len(out), len(stage.taken), errs[0])
		}
	}
}

// Large values that a stage lets pass are left to the kernel, in either direction; the values of a
// message that it takes are not.
func TestLargeValuesPassAStageUnheld(t *testing.T) {
	for timestamp := range int32(3) {
		b := withValues(timestamp, 1<<20)[:1000]
		e, d := newEncoder(nil, &Flow{}), newDecoder(nil, &Flow{})
		stage := newSieve(2)
		e.stage, d.stage = stage, stage
		for name, s := range map[string]side{"encoder": e, "decoder": d} {
			in := input{buf: make([]byte, 64<<10), w: len(b)}
			copy(in.buf, b)
			out := output{conn: &collecting{}}
			v, err := s.step(&in, &out)
			if takes := stage.takes(timestamp); err != nil || (v.move >= spliceFrom) == takes || takes && out.waiting > 0 {
				t.Errorf("%s, message %d: %d bytes are left to the kernel, %d pass, %v", name, timestamp, v.move, out.waiting, err)
			}
		}
	}
}

// keysLater is a stage that wants keys only once it has seen a message without them.
type keysLater struct {
	*sieve
	wants bool
	keys  int
}

func (s *keysLater) WantsKeys(*pslite.Meta) bool { return s.wants }
func (s *keysLater) Inspect(m *pslite.Message, _ pslite.Dialect) (Taken, error) {
	s.wants, s.keys = true, m.Keys().Len()
	return Passes, nil
}

// A stage that comes to want the keys of a message while that is looked at, as when the job is
// learned just then, gets them.
func TestStageComesToWantKeys(t *testing.T) {
	const keys = 20 << 10 // too many to be held unasked
	meta := pslite.Meta{Head: 1, Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char}}
	b := appendFrame(greetingAndReady("DEALER"), meta.Append(nil, pslite.DMLC), true)
	b = appendFrame(appendFrame(b, make([]byte, 8*keys), true), make([]byte, keys), false)
	e := newEncoder(nil, &Flow{})
	stage := &keysLater{sieve: newSieve(-1)}
	e.stage = stage
	if out, errs := pump(b, e); errs[0] != nil || !bytes.Equal(out, b) || stage.keys != keys {
		t.Errorf("%d of %d bytes pass, the stage has seen %d keys of %d, %v", len(out), len(b), stage.keys, keys, errs[0])
	}
}

// A message with a header that is longer than necessary is not encoded, but a stage sees it.
func TestStageSeesLongHeaders(t *testing.T) {
	for timestamp := range int32(3) {
		meta := pslite.Meta{Head: 1, Request: true, Push: true, Timestamp: timestamp, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char}}
		body := meta.Append(nil, pslite.DMLC)
		b := append(zmtp.AppendHeader(nil, zmtp.Header{Flags: zmtp.Long | zmtp.More, Size: uint64(len(body))}), body...)
		b = appendFrame(appendFrame(b, make([]byte, 8), true), []byte{1}, false)
		e := newEncoder(&wholeSender{}, &Flow{})
		stage := newSieve(2)
		e.stage = stage
		sent := append(greetingAndReady("DEALER"), b...)
		want := sent
		if stage.takes(timestamp) {
			want = greetingAndReady("DEALER")
		}
		if out, errs := pump(sent, e); errs[0] != nil || !bytes.Equal(out, want) || (len(stage.taken) == 1) != stage.takes(timestamp) {
			t.Errorf("message %d: %d bytes pass, want %d; %d are taken; %v", timestamp, len(out), len(want), len(stage.taken), errs[0])
		}
	}
}

// A stage sees a READY up to the size that a command may have; with its error the command does not
// pass.
func TestStageSeesReady(t *testing.T) {
	refuses := errors.New("another node")
	for _, which := range []string{"encoder", "decoder"} {
		for _, err := range []error{nil, refuses} {
			stage := &picky{sieve: newSieve(2), err: err}
			var s side
			if which == "encoder" {
				e := newEncoder(nil, &Flow{})
				e.stage, s = stage, e
			} else {
				d := newDecoder(nil, &Flow{})
				d.stage, s = stage, d
			}
			sent := append(greetingAndReady("DEALER"), own(7)...)
			out, errs := pump(sent, s)
			if err == nil && (!bytes.Equal(out, sent) || errs[0] != nil) || err != nil && (len(out) > 64 || !errors.Is(errs[0], refuses)) {
				t.Errorf("%s, refused with %v: %d of %d bytes pass, %v", which, err, len(out), len(sent), errs[0])
			}
		}
	}
}

// picky refuses a READY.
type picky struct {
	*sieve
	err error
}

func (p *picky) Command(name string, data []byte) (bool, error) {
	if name == zmtp.CommandReady && p.err != nil {
		return false, p.err
	}
	return p.sieve.Command(name, data)
}

// pumped runs bytes through a direction with a bound on memory.
type pumped struct {
	ctx    context.Context
	side   side
	memory *Memory
}

func newPumped(s side, m *Memory) *pumped { return &pumped{context.Background(), s, m} }

func (p *pumped) run(t *testing.T, b []byte) (out []byte, err error) {
	t.Helper()
	from, src := tcpPair(t)
	dst, to := tcpPair(t)
	d := &direction{src: src, dst: dst, side: p.side, flow: &Flow{}}
	var running sync.WaitGroup
	running.Go(func() {
		err = d.run(p.ctx, p.memory)
		src.Close()
		dst.Close()
	})
	running.Go(func() {
		from.Write(b) // fails where the side gives up
		from.CloseWrite()
	})
	out, _ = io.ReadAll(to)
	running.Wait()
	return out, err
}

// asConn has a pair's second half as a Conn has it.
func asConn(a, b *net.TCPConn) (*net.TCPConn, net.Conn) { return a, b }
