package spare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

var messages = []message{
	{push: true, number: 1, asks: []Ask{{9, 1}}, pieces: []Piece{{5, []byte("abcd")}}},
	{push: true, pull: true, kind: element.Float64, number: 1 << 40, asks: []Ask{{9, 1}, {-11, -1}}, pieces: []Piece{{5, make([]byte, 16)}, {1<<64 - 1, []byte{}}}},
	{pull: true, number: 7, asks: []Ask{{1, 1}}, pieces: []Piece{{Key: 5}, {Key: 3}}},
	{push: true, kind: Int64, asks: []Ask{{1, 1}}},
}

// encodeMessage returns a message's frame as it goes over a link.
func encodeMessage(m *message) []byte {
	return bytes.Join(appendFrames(nil, []*frame{{message: *m}}), nil)
}

// encodeReply returns the frame of what was decoded.
func encodeReply(r *reply) []byte {
	if !r.isAnswer {
		return appendFree(nil, r.free)
	}
	rest := len(r.text)
	for _, v := range r.values {
		rest += 4 + len(v)
	}
	values := byte(0)
	if r.pull {
		values = 1
	}
	b := append(appendAnswerHead(nil, r.number, r.code, values, r.free, len(r.values), rest), r.text...)
	for _, v := range r.values {
		n := uint32(len(v))
		if v == nil {
			n = leftOut
		}
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return append(b, bytes.Join(r.values, nil)...)
}

func TestMessagesThereAndBack(t *testing.T) {
	large := message{push: true, asks: []Ask{{1, 2}}, pieces: []Piece{{1, make([]byte, 8)}, {2, bytes.Repeat([]byte{7}, leastApart)}, {3, make([]byte, 4)}}}
	for _, m := range append(messages, large) {
		b, err := readFrame(bytes.NewReader(encodeMessage(&m)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeMessage(b)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(m) {
			t.Errorf("%v became %v, %v", m, got, err)
		}
		for n := range min(len(b), 100) {
			if _, err := decodeMessage(b[:n]); !errors.Is(err, errForm) {
				t.Errorf("%d of %d bytes: %v", n, len(b), err)
			}
		}
	}
}

// What a request says of kept values is one of three things, and only a pull says it.
func TestKeepOfAPull(t *testing.T) {
	for _, tc := range []struct {
		m    message
		keep keep
		ok   bool
	}{
		{messages[2], keepAnew, true}, {messages[2], keepOrNot, true}, {messages[2], keepOrNot + 1, false},
		{messages[0], keepAnew, false}, {messages[1], keepOrNot, false},
	} {
		tc.m.keep = tc.keep
		got, err := decodeMessage(encodeMessage(&tc.m)[lengthSize:])
		if (err == nil) != tc.ok || tc.ok && got.keep != tc.keep {
			t.Errorf("%+v became %+v, %v", tc.m, got, err)
		}
	}
}

func TestFailureIsText(t *testing.T) {
	for _, err := range []error{errors.New("a\xff" + strings.Repeat("ö", mostText)), fmt.Errorf("it is full: %w", ErrNoRoom)} {
		b, readErr := readFrame(bytes.NewReader(appendFailure(nil, 5, 6, err)))
		if readErr != nil {
			t.Fatal(readErr)
		}
		r, decodeErr := decodeReply(b)
		if decodeErr != nil || r.number != 5 || r.free != 6 || r.failure() == nil || errors.Is(r.failure(), ErrNoRoom) != errors.Is(err, ErrNoRoom) {
			t.Errorf("%+v, %v", r, decodeErr)
		}
	}
}

// greedy is a link that claims a frame's length and ends, and notes the most bytes that were asked for.
type greedy struct {
	head io.Reader
	most int
}

func (g *greedy) Read(b []byte) (int, error) {
	if n, err := g.head.Read(b); err == nil {
		return n, nil
	}
	g.most = max(g.most, len(b))
	return 0, io.EOF
}

// A length that is only claimed takes no memory.
func TestClaimedLengthTakesNoMemory(t *testing.T) {
	for _, n := range []uint32{1 << 20, mostFrame, mostFrame + 1} {
		g := &greedy{head: bytes.NewReader(append(binary.LittleEndian.AppendUint32(nil, n), 1, 2, 3))}
		b, err := readFrame(g)
		if err == nil || b != nil || g.most > firstRead {
			t.Errorf("%d bytes are claimed: %d are read, %v", n, g.most, err)
		}
	}
	long := bytes.Repeat([]byte("abcdefg"), 300_000)
	b, err := readFrame(io.MultiReader(bytes.NewReader(binary.LittleEndian.AppendUint32(nil, uint32(len(long)))), bytes.NewReader(long)))
	if err != nil || !bytes.Equal(b, long) {
		t.Errorf("a long frame: %d bytes, %v", len(b), err)
	}
}

func FuzzDecodeMessage(f *testing.F) {
	for i := range messages {
		f.Add(encodeMessage(&messages[i])[lengthSize:])
	}
	f.Add([]byte{typeRequest, 1, 0, 0, 19: 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		if again := encodeMessage(&m)[lengthSize:]; !bytes.Equal(again, b) {
			t.Errorf("% x became % x", b, again)
		}
	})
}

func FuzzDecodeReply(f *testing.F) {
	f.Add(appendFree(nil, 1<<40)[lengthSize:])
	f.Add(appendFailure(nil, 3, 4, ErrNoRoom)[lengthSize:])
	f.Add(appendAnswerHead(nil, 3, codeDone, 0, 5, 0, 0)[lengthSize:])
	f.Add(encodeReply(&reply{isAnswer: true, pull: true, values: [][]byte{[]byte("abcd"), nil, {}}})[lengthSize:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeReply(b)
		if err != nil {
			return
		}
		_ = r.failure()
		if again := encodeReply(&r)[lengthSize:]; !strings.Contains(r.text, "?") && !bytes.Equal(again, b) {
			t.Errorf("% x became % x", b, again)
		}
	})
}
