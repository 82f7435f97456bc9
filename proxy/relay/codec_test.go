package relay

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

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

// wholeSender wants all messages whole and encodes none.
type wholeSender struct{ whole, part int }

func (s *wholeSender) Hold(*Message) bool { return true }

func (s *wholeSender) Close() {}

func (s *wholeSender) Encode(dst []byte, m *Message) ([]byte, uint32, bool) {
	if m.Rest {
		s.part++
	} else {
		s.whole++
	}
	return dst, 0, false
}

// asking asks for every message several times what it is.
type asking struct {
	plainCodec
	asked int
}

func (a *asking) Encode(dst []byte, m *Message) ([]byte, uint32, bool) {
	for range 3 {
		a.asked++
		if _, d, err := m.Decode(); err != nil || d != pslite.DMLC {
			panic(err)
		}
	}
	return dst, 0, false
}

// The relay decodes a message's meta once, for its stage and its codec, that of a stream's first message too,
// by which it finds out what the stream is.
func TestMetaDecodedOnce(t *testing.T) {
	const messages = 50
	sent := greetingAndReady("DEALER")
	rng := rand.New(rand.NewPCG(1, 1))
	for range messages {
		sent = push(sent, rng, 4, 16, false)
	}
	a, stage := &asking{}, newSieve(-1)
	e := newEncoder(a, &Flow{})
	e.stage = stage // it takes none
	if out, errs := pump(sent, e); errs[0] != nil || !bytes.Equal(out, sent) {
		t.Fatalf("%d bytes came out of %d, %v", len(out), len(sent), errs[0])
	}
	if n := e.detector.Decoded(); a.asked != 3*messages || n != messages {
		t.Errorf("%d metas were decoded for %d messages, of which a codec asked %d times", n, messages, a.asked)
	}
	if len(stage.inspected) == 0 {
		t.Error("the stage has seen none")
	}
}

// sharing refers to what the other end has, and may wait until that is used.
type sharing struct {
	plainCodec
	written func() int // bytes that are not written yet
	late    int        // messages before which there were some
}

func (c *sharing) Elsewhere() (lane, spared int) { return 0, 0 }
func (c *sharing) MayWait(int) bool              { return true }

func (c *sharing) Encode(dst []byte, m *Message) ([]byte, uint32, bool) {
	if c.written() > 0 {
		c.late++
	}
	return c.plainCodec.Encode(dst, m)
}

// Nothing waits for what has not been written: what came before a message that may
// wait for its use goes first.
func TestWhatIsWaitedForIsWritten(t *testing.T) {
	var stream []byte
	meta := (&pslite.Meta{Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64}, DataSize: 8}).Append(nil, pslite.DMLC)
	for range 3 {
		stream = zmtp.AppendHeader(stream, zmtp.FrameHeader(len(meta), true))
		stream = append(stream, meta...)
		stream = zmtp.AppendHeader(stream, zmtp.FrameHeader(8, false))
		stream = append(stream, make([]byte, 8)...)
	}
	var out output
	c := &sharing{plainCodec: plainCodec{rng: rand.New(rand.NewPCG(1, 1))}, written: func() int { return out.waiting }}
	e := newEncoder(c, &Flow{})
	in := input{buf: stream, w: len(stream)}
	for flushes := 0; in.r < in.w; flushes++ {
		if _, err := e.step(&in, &out); err != nil || flushes > 3 {
			t.Fatalf("%d flushes, %v", flushes, err)
		}
		out.reset()
	}
	if c.shown != 3 || c.late > 0 {
		t.Errorf("of %d messages %d were encoded before what came earlier was written", c.shown, c.late)
	}
}
