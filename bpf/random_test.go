package bpf

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// streamMaker makes up PS-lite streams of both dialects and cuts them into
// segments.
type streamMaker struct {
	*rand.Rand
	body []byte // random bytes, of which frames are slices
}

func newStreamMaker(seed uint64) *streamMaker {
	m := &streamMaker{Rand: rand.New(rand.NewPCG(seed, 1)), body: make([]byte, 1<<17)}
	for i := range m.body {
		m.body[i] = byte(m.Uint32())
	}
	return m
}

// stream returns a whole stream: greeting, READY, messages and commands.
func (m *streamMaker) stream() []byte {
	greeting := zmtp.NewGreeting(byte(m.IntN(2)), m.IntN(4))
	b := append([]byte{}, greeting[:]...)
	b = zmtp.AppendReady(b, "DEALER", m.bytes(m.IntN(5)))
	byteps := m.IntN(4) == 0
	for range 1 + m.IntN(6) {
		switch {
		case m.IntN(12) == 0:
			b = zmtp.AppendCommand(b, "PING", m.bytes(m.IntN(300)))
		case byteps:
			b = m.message(b, m.bytepsMeta, true)
		default:
			b = m.message(b, m.dmlcMeta, false)
		}
	}
	return b
}

func (m *streamMaker) bytes(n int) []byte {
	at := m.IntN(len(m.body) - n)
	return m.body[at : at+n]
}

// frame appends a data frame, in the long form more often than libzmq would.
func (m *streamMaker) frame(b, body []byte, more bool) []byte {
	h := zmtp.FrameHeader(len(body), more)
	if m.IntN(8) == 0 {
		h.Flags |= zmtp.Long
	}
	return append(zmtp.AppendHeader(b, h), body...)
}

func (m *streamMaker) message(b []byte, meta func(request, push, data bool) []byte, envelope bool) []byte {
	request, push, data := m.IntN(2) == 0, m.IntN(2) == 0, m.IntN(5) > 0
	if envelope && !request {
		b = m.frame(b, []byte("ps9"), true)
	}
	if !data || push && !request {
		return m.frame(b, meta(request, push, data), false)
	}
	b = m.frame(b, meta(request, push, true), true)
	list := m.keys()
	keys := len(list)
	b = m.frame(b, list, true)
	values := 0
	if push || !request {
		values = 4 * m.size()
	}
	lens := m.IntN(3) == 0
	b = m.frame(b, m.bytes(values), lens)
	if lens {
		b = m.frame(b, m.bytes(keys/2), false)
	}
	return b
}

// keys returns a key frame: random bytes, or runs of keys at one distance, of
// all lengths, with strangers between them.
func (m *streamMaker) keys() []byte {
	n := m.size()
	if m.IntN(2) == 0 {
		return m.bytes(8 * n)
	}
	list := make([]byte, 0, 8*n)
	key, step, left := m.Uint64(), uint64(1), 0
	for range n {
		if left == 0 {
			key, step, left = m.Uint64(), []uint64{1, 1, 7, m.Uint64(), 0}[m.IntN(5)], 1+m.IntN(2*n)
		}
		list = native.AppendUint64(list, key)
		key, left = key+step, left-1
	}
	return list
}

// size of a list: short as a rule, sometimes long enough to span segments.
func (m *streamMaker) size() int {
	switch m.IntN(20) {
	case 0:
		return 0
	case 1:
		return m.IntN(3000)
	case 2, 3:
		return m.IntN(200)
	}
	return m.IntN(12)
}

// dmlcMeta writes a protobuf as PS-lite does.
func (m *streamMaker) dmlcMeta(request, push, data bool) []byte {
	number := func(b []byte, field int, v int32) []byte {
		return binary.AppendUvarint(append(b, byte(field<<3)), uint64(int64(v)))
	}
	flag := func(b []byte, field int, v bool) []byte { return append(b, byte(field<<3), flag(v)) }
	blob := func(b []byte, field int, v []byte) []byte {
		return append(binary.AppendUvarint(append(b, byte(field<<3|2)), uint64(len(v))), v...)
	}
	b := number(nil, 1, m.Int32()>>m.IntN(32)-int32(m.IntN(3)))
	if !data {
		if m.IntN(2) == 0 {
			b = blob(b, 2, m.bytes(m.IntN(700)))
		} else {
			b = blob(b, 3, m.bytes(2+m.IntN(100)))
		}
	}
	b = flag(b, 4, request)
	b = flag(b, 5, push)
	b = flag(b, 6, !data)
	b = number(b, 7, m.Int32N(3))
	b = number(b, 8, m.Int32()>>m.IntN(32))
	if data {
		b = blob(b, 9, []byte{8, 9})
	}
	b = number(b, 10, m.Int32N(3))
	if m.IntN(4) > 0 {
		b = flag(b, 12, !push)
		b = number(b, 13, m.Int32N(100)-50)
	}
	return b
}

// bytepsMeta writes bytedance/ps-lite's C structure.
func (m *streamMaker) bytepsMeta(request, push, data bool) []byte {
	var nodes, types, body int
	if data {
		types = 2 + m.IntN(2)
	} else {
		nodes = m.IntN(3)
		body = m.IntN(40)
	}
	b := make([]byte, 112+body+4*types+552*nodes)
	le := binary.LittleEndian
	le.PutUint32(b[0:], m.Uint32())
	le.PutUint32(b[4:], uint32(body))
	le.PutUint32(b[12:], uint32(nodes))
	if !data {
		le.PutUint32(b[8:], uint32(1+m.IntN(5)))
	}
	b[32] = flag(request)
	le.PutUint32(b[40:], uint32(m.Int32()>>m.IntN(32)))
	le.PutUint32(b[44:], uint32(types))
	b[68] = flag(push)
	return b
}

// cut makes segments of the stream: of a single byte, of few, of many, with
// bytes repeated and segments sent again.
func (m *streamMaker) cut(number uint32, stream []byte) []segment {
	largest := []int{1, 3, 20, 200, maxPayload, maxPayload, maxPayload}[m.IntN(7)]
	if len(stream)/largest > 400 {
		largest = maxPayload
	}
	start := m.Uint32() // anywhere, so that sequence numbers wrap as well
	segments := []segment{}
	ipv6 := m.IntN(2) == 0
	for at := 0; at < len(stream); {
		from := at
		if m.IntN(10) == 0 { // reaches back
			from -= m.IntN(min(at, 50) + 1)
		}
		at = min(at+1+m.IntN(largest), from+maxPayload, len(stream))
		s := segment{stream: number, seq: start + 1 + uint32(from), ipv6: ipv6, payload: stream[from:at]}
		if len(segments) == 0 {
			s.flags, s.seq = tcpSyn, start
		}
		segments = append(segments, s)
		if m.IntN(30) == 0 { // sent again
			if again := segments[m.IntN(len(segments))]; again.flags == 0 {
				segments = append(segments, again)
			}
		}
	}
	return segments
}

// randomStreams is how many streams TestRandomStreams tries. A million take
// the time that its log line says: PSIDECAR_RANDOM_STREAMS=1000000.
const randomStreams = 60_000

// TestRandomStreams: the kernel finds in streams cut anywhere exactly the
// messages that the Go reader finds.
func TestRandomStreams(t *testing.T) {
	require.BPF(t)
	n := randomStreams
	if text := os.Getenv("PSIDECAR_RANDOM_STREAMS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("PSIDECAR_RANDOM_STREAMS: %v", err)
		}
	}
	if testing.Short() {
		n /= 20
	}
	workers := runtime.GOMAXPROCS(0)
	var (
		group    sync.WaitGroup
		messages = make([]int, workers)
		segments = make([]int, workers)
	)
	for w := range workers {
		f := newFeeder(t, Options{Streams: 64, RingBytes: 1 << 22, Sampling: Sampling{AnswerKeys: true}})
		group.Go(func() { messages[w], segments[w] = f.tryStreams(t, uint64(w), n/workers) })
	}
	group.Wait()
	var allMessages, allSegments int
	for w := range workers {
		allMessages += messages[w]
		allSegments += segments[w]
	}
	t.Logf("%d streams, %d segments, %d messages", n, allSegments, allMessages)
}

// tryStreams compares n streams and returns the number of their messages and
// segments; it gives up after a difference.
func (f *feeder) tryStreams(t *testing.T, seed uint64, n int) (messages, segments int) {
	m := newStreamMaker(seed)
	for i := range n {
		stream := m.stream()
		want, commands, _, err := readStream(stream, false)
		if err != nil {
			t.Errorf("stream %d of seed %d: the Go reader says %v", i, seed, err)
			return messages, segments
		}
		cut := m.cut(uint32(i), stream)
		for _, s := range cut {
			f.send(t, s)
		}
		f.collect(t)
		id := cut[0].id()
		if diff := f.transcript(id).differ(want, commands); diff != "" {
			t.Errorf("stream %d of seed %d, %d bytes in %d segments: %.2000s", i, seed, len(stream), len(cut), diff)
			return messages, segments
		}
		f.runs += f.transcript(id).runs
		f.forget(t, id)
		messages += len(want)
		segments += len(cut)
	}
	if f.runs == 0 {
		t.Error("no run of keys was told")
	}
	if lost := f.counts(t); lost.Lost().Events != lost[ReasonTruncated].Events {
		t.Errorf("lost: %v", lost)
	}
	return messages, segments
}
