package zmtp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// recode runs stream through a decoder in pieces that cut chooses and returns
// what the Append functions make of the events.
func recode(d *Decoder, stream []byte, cut func(left int) int) (out []byte, err error) {
	for len(stream) > 0 {
		n := min(max(cut(len(stream)), 1), len(stream))
		chunk := bytes.Clone(stream[:n]) // of its own, so that overruns show
		stream = stream[n:]
		for {
			ev, rest, err := d.Next(chunk)
			if err != nil {
				return out, err
			}
			if ev.Kind == NeedMore {
				break
			}
			switch ev.Kind {
			case GreetingDone:
				out = append(out, d.Greeting()[:]...)
			case FrameStart:
				out = AppendHeader(out, ev.Header)
			case FrameBody:
				out = append(out, ev.Body...)
			}
			chunk = rest
		}
	}
	return out, nil
}

// sample is a connection's first bytes as libzmq sends them, and messages of
// frames of these sizes.
func sample(sizes ...int) []byte {
	g := NewGreeting(1, 3)
	b := AppendReady(bytes.Clone(g[:]), "DEALER", []byte("ps9"))
	b = appendPing(b, 300, []byte("abc"))
	for i, size := range sizes {
		b = AppendHeader(b, FrameHeader(size, i%3 != 2))
		b = append(b, bytes.Repeat([]byte{byte(i)}, size)...)
	}
	return b
}

func TestAnyPieces(t *testing.T) {
	stream := sample(0, 1, 255, 256, 70000, 3)
	for _, step := range []int{1, 2, 3, 7, 10, 53, 64, 1000, len(stream)} {
		d := NewDecoder(Limits{})
		out, err := recode(d, stream, func(int) int { return step })
		if err != nil || !bytes.Equal(out, stream) || !d.Between() || d.Offset() != uint64(len(stream)) {
			t.Errorf("pieces of %d: %v, equal %v, between %v, offset %d of %d",
				step, err, bytes.Equal(out, stream), d.Between(), d.Offset(), len(stream))
		}
	}
}

func TestRecodeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGreeting(byte(rapid.IntRange(0, 1).Draw(t, "minor")), rapid.IntRange(0, 255).Draw(t, "identity"))
		stream := bytes.Clone(g[:])
		frames := rapid.IntRange(0, 20).Draw(t, "frames")
		for range frames {
			h := Header{
				Flags: Flags(rapid.SampledFrom([]Flags{0, More, Long, Long | More, Command, Command | Long}).Draw(t, "flags")),
				Size:  uint64(rapid.SampledFrom([]int{0, 1, 2, 9, 254, 255, 256, 1000, 70000}).Draw(t, "size")),
			}
			if h.Flags&Long == 0 {
				h.Size = min(h.Size, 255)
			}
			stream = append(AppendHeader(stream, h), make([]byte, h.Size)...)
		}
		out, err := recode(NewDecoder(Limits{}), stream, func(left int) int {
			return rapid.SampledFrom([]int{1, 2, 5, 9, 10, 64, 300, 5000, left}).Draw(t, "cut")
		})
		if err != nil || !bytes.Equal(out, stream) {
			t.Fatalf("%v, %d bytes in, %d out", err, len(stream), len(out))
		}
	})
}

func TestDecoderRefuses(t *testing.T) {
	g := NewGreeting(1, 0)
	greeting := func(tail ...byte) []byte { return append(bytes.Clone(g[:]), tail...) }
	with := func(at int, v byte) []byte { b := bytes.Clone(g[:]); b[at] = v; return b }
	for _, tc := range []struct {
		name   string
		stream []byte
		limits Limits
		offset uint64
		want   string
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), Limits{}, 0, "another protocol"},
		{"TLS", []byte{0x16, 3, 1}, Limits{}, 0, "another protocol"},
		{"signature's end", with(9, 0), Limits{}, 9, "not in 7f"},
		{"ZMTP 2", with(10, 1), Limits{}, 10, "older than 3.0"},
		{"reserved flag", greeting(8), Limits{}, 64, "reserved"},
		{"command in a message", greeting(5), Limits{}, 64, "cannot be part"},
		{"size 2^63", greeting(2, 0x80, 0, 0, 0, 0, 0, 0, 0), Limits{}, 64, "2^63"},
		{"data limit", greeting(0, 11), Limits{FrameSize: 10}, 64, "limit of 10"},
		{"command limit", greeting(4, 11), Limits{CommandSize: 10}, 64, "limit of 10"},
		{"frame limit", greeting(1, 0, 1, 0, 0, 0), Limits{Frames: 2}, 68, "more than 2 frames"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, step := range []int{1, 1000} {
				d := NewDecoder(tc.limits)
				_, err := recode(d, tc.stream, func(int) int { return step })
				var syntax *SyntaxError
				if !errors.As(err, &syntax) || syntax.Offset != tc.offset || !strings.Contains(syntax.Reason, tc.want) {
					t.Errorf("pieces of %d: %v; want %q at byte %d", step, err, tc.want, tc.offset)
				}
				if _, _, again := d.Next([]byte{0, 0}); again != err {
					t.Errorf("the error does not stay: %v", again)
				}
			}
		})
	}
}

// A frame may claim any size: nothing is held, and the body can be stepped
// over by counts alone.
func TestHugeFrameCostsNothing(t *testing.T) {
	d := NewDecoder(Limits{})
	d.Reset(true)
	stream := AppendHeader(nil, Header{Flags: Long, Size: math.MaxInt64})
	piece := make([]byte, 1<<16)
	allocs := testing.AllocsPerRun(10, func() {
		d.Reset(true)
		ev, _, err := d.Next(stream)
		if err != nil || ev.Kind != FrameStart || ev.Header.Size != math.MaxInt64 {
			t.Fatal(ev, err)
		}
		if ev, _, _ := d.Next(piece); ev.Kind != FrameBody || len(ev.Body) != len(piece) {
			t.Fatal(ev.Kind, len(ev.Body))
		}
		if n := d.Discard(1 << 63); n != math.MaxInt64-1<<16 {
			t.Fatal(n)
		}
		if ev, _, _ := d.Next(nil); ev.Kind != FrameEnd || !d.Between() {
			t.Fatal(ev.Kind)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestDiscardOutsideABody(t *testing.T) {
	d := NewDecoder(Limits{})
	if n := d.Discard(5); n != 0 {
		t.Errorf("discarded %d bytes of a greeting", n)
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add(sample(0, 1, 256), uint8(7), false)
	f.Add(sample(2, 255, 0)[64:], uint8(1), true)
	f.Add([]byte("GET / HTTP/1.1\r\n"), uint8(3), false)
	f.Add(AppendHeader(nil, Header{Flags: Long, Size: math.MaxInt64}), uint8(9), true)
	f.Fuzz(func(t *testing.T, stream []byte, step uint8, synced bool) {
		run := func(step int) (string, []byte) {
			d := NewDecoder(Limits{})
			d.Reset(synced)
			out, err := recode(d, stream, func(int) int { return step })
			if err == nil && d.Offset() != uint64(len(stream)) {
				t.Errorf("offset %d after %d bytes", d.Offset(), len(stream))
			}
			if !bytes.HasPrefix(stream, out) {
				t.Error("what was read is not what is written")
			}
			return fmt.Sprint(err), out
		}
		errWhole, whole := run(len(stream))
		errPieces, pieces := run(int(step))
		if errWhole != errPieces || !bytes.Equal(whole, pieces) {
			t.Errorf("whole: %s, %d bytes; in pieces of %d: %s, %d bytes", errWhole, len(whole), step, errPieces, len(pieces))
		}
	})
}
