package relay

import (
	"math/rand/v2"
	"net"
	"testing"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// sink is a connection that swallows what is written.
type sink struct{ net.Conn }

func (sink) Write(b []byte) (int, error) { return len(b), nil }

// source repeats the same messages for ever, in reads of 64 KiB or less.
type source struct {
	net.Conn
	messages, rest []byte
}

func (s *source) Read(b []byte) (int, error) {
	if len(s.rest) == 0 {
		s.rest = s.messages
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// copying is a codec that puts meta and keys into the head as they are, and
// costs as little as one can.
type copying struct{ frames [8][]byte }

func (c *copying) Encode(dst []byte, m *Message) ([]byte, uint32, bool) {
	dst = append(dst, byte(len(m.Frames[0])))
	dst = append(dst, m.Frames[0]...)
	return append(dst, m.Frames[1]...), ^uint32(3), true
}

func (c *copying) Decode(head []byte) ([][]byte, uint32, error) {
	n := 1 + int(head[0])
	c.frames = [8][]byte{head[1:n], head[n:]}
	return c.frames[:3], ^uint32(3), nil
}

func (c *copying) Close() {}

// each runs messages through a side, b.N of them.
func each(b *testing.B, s side, messages []byte, perRound int) {
	var in input
	if err := in.init(&source{messages: messages}, NewMemory(64<<20)); err != nil {
		b.Fatal(err)
	}
	defer in.release()
	out := output{conn: sink{}}
	b.SetBytes(int64(len(messages) / perRound))
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N*len(messages)/perRound; {
		if err := in.fill(); err != nil {
			b.Fatal(err)
		}
		for {
			before := in.r
			v, err := s.step(&in, &out)
			done += in.r - before
			if err == nil {
				err = out.flush()
			}
			if err != nil {
				b.Fatal(err)
			}
			if !v.flush {
				if v.need > 0 {
					in.room(v.need)
				}
				break
			}
		}
	}
}

// refusing is a codec that encodes nothing.
type refusing struct{ copying }

func (*refusing) Encode(dst []byte, _ *Message) ([]byte, uint32, bool) { return dst, 0, false }

// openStage lets everything pass, and has nothing of its own.
type openStage struct{ Stage }

func (openStage) WantsKeys(*pslite.Meta) bool                            { return true }
func (openStage) Inspect(*pslite.Message, pslite.Dialect) (Taken, error) { return Passes, nil }
func (openStage) HasDue() bool                                           { return false }
func (openStage) Due() [][]byte                                          { return nil }

func benchmarkSides(b *testing.B, keys, vals int) {
	const n = 100
	var messages []byte
	rng := rand.New(rand.NewPCG(1, 1))
	for range n {
		messages = push(messages, rng, keys, vals, false)
	}
	b.Run("plain", func(b *testing.B) {
		each(b, &encoder{sender: &refusing{}, flow: &Flow{}}, messages, n)
	})
	b.Run("past a stage", func(b *testing.B) {
		e := newEncoder(nil, &Flow{})
		e.stage = openStage{}
		each(b, e, messages, n)
	})
	b.Run("encode", func(b *testing.B) { each(b, &encoder{sender: &copying{}, flow: &Flow{}}, messages, n) })
	b.Run("decode", func(b *testing.B) {
		encoded := &collecting{}
		in, out := input{conn: &source{messages: messages}, memory: NewMemory(64 << 20)}, output{conn: encoded}
		in.buf, in.w = messages, len(messages)
		if _, err := (&encoder{sender: &copying{}, flow: &Flow{}}).step(&in, &out); err != nil {
			b.Fatal(err)
		}
		if err := out.flush(); err != nil {
			b.Fatal(err)
		}
		each(b, &decoder{receiver: &copying{}, flow: &Flow{}}, encoded.all, n)
	})
}

type collecting struct {
	net.Conn
	all []byte
}

func (c *collecting) Write(b []byte) (int, error) { c.all = append(c.all, b...); return len(b), nil }

func BenchmarkSmallMessages(b *testing.B) { benchmarkSides(b, 2, 8) }
func BenchmarkLargeMessages(b *testing.B) { benchmarkSides(b, 1000, 100<<10) }
