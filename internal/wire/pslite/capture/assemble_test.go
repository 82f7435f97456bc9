package capture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// replay runs segments through assembler and streams.
func replay(segs []Segment) (list []string, totals Totals) {
	j := newJob(Options{}, func(m *Message) error { list = append(list, line(m)); return nil })
	a := NewAssembler(j.openDirection)
	for i := range segs {
		a.Add(&segs[i])
	}
	a.Close()
	j.totals.MissingBytes = a.Missing
	return list, j.totals
}

// disturb makes of segs what a bad network could: segments cut, repeated,
// overlapping and out of order, all within the assembler's patience.
func disturb(segs []Segment, rng *rand.Rand) []Segment {
	var out []Segment
	for _, s := range segs {
		rest := s
		for len(rest.Payload) > 1 && rng.IntN(2) == 0 {
			n := 1 + rng.IntN(len(rest.Payload)-1)
			head := rest
			head.Payload, head.FIN = rest.Payload[:n], false
			if over := rng.IntN(len(rest.Payload) - n); rng.IntN(3) == 0 { // overlaps the next
				head.Payload = rest.Payload[:n+over]
			}
			out = append(out, head)
			rest.SYN = false
			rest.Payload, rest.Seq = rest.Payload[n:], rest.Seq+uint32(n)
		}
		out = append(out, rest)
		if rng.IntN(4) == 0 {
			out = append(out, rest)
		}
	}
	for i := range out { // out of order by up to three places, SYN and RST excepted
		k := i + rng.IntN(4)
		if k < len(out) && !slices.ContainsFunc(out[i:k+1], func(s Segment) bool { return s.SYN || s.RST }) {
			out[i], out[k] = out[k], out[i]
		}
	}
	return out
}

func TestDisturbedRecordings(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.name, func(t *testing.T) {
			segs := segments(t, readRecording(t, rec.name))
			want, _ := replay(segs)
			slices.Sort(want)
			for seed := range uint64(20) {
				got, totals := replay(disturb(segs, rand.New(rand.NewPCG(seed, 1))))
				slices.Sort(got) // completed in another order
				// Who sends and receives may be known later than the message.
				if len(got) != len(want) || totals.UnsyncedBytes != 0 || totals.MissingBytes != 0 || totals.BodyBytes != rec.bodyBytes {
					t.Fatalf("seed %d: %d messages, want %d; %+v", seed, len(got), len(want), totals)
				}
			}
		})
	}
}

// A recording that starts late finds the messages again, and says how many
// bytes it could not place; none is invented.
func TestLateStart(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.name, func(t *testing.T) {
			segs := segments(t, readRecording(t, rec.name))
			whole, _ := replay(segs)
			known := map[string]int{}
			strip := func(s string) string { // names may be unknown
				var dialect, from, to, rest string
				fmt.Sscan(s, &dialect, &from, &to)
				rest = s[len(dialect)+len(from)+len(to)+3:]
				return dialect + " " + rest
			}
			for _, l := range whole {
				known[strip(l)]++
			}
			for _, part := range []int{4, 3, 2} {
				tail := segs[len(segs)/part:]
				var payload uint64
				for _, s := range tail {
					payload += uint64(len(s.Payload))
				}
				got, totals := replay(tail)
				seen := map[string]int{}
				for _, l := range got {
					if l = strip(l); seen[l] == known[l] {
						t.Fatalf("from 1/%d on: a message that is not in the recording: %s", part, l)
					}
					seen[l]++
				}
				if len(got) == 0 || totals.UnsyncedBytes*5 > payload {
					t.Errorf("from 1/%d on: %d messages, %d of %d bytes unsynced", part, len(got), totals.UnsyncedBytes, payload)
				}
			}
		})
	}
}

// wire builds one direction's stream: handshake and n pushes.
func pushStream(n, values int) []byte {
	g := zmtp.NewGreeting(1, 3)
	b := zmtp.AppendReady(bytes.Clone(g[:]), "DEALER", []byte("ps9"))
	for ts := range n {
		b = append(b, push(ts, values)...)
	}
	return b
}

func push(ts, values int) (b []byte) {
	m := pslite.Meta{Timestamp: int32(ts), Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	frames := [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, []uint64{uint64(ts)}), make([]byte, 4*values)}
	for i, f := range frames {
		b = zmtp.AppendHeader(b, zmtp.FrameHeader(len(f), i < 2))
		b = append(b, f...)
	}
	return b
}

var testFlow = Flow{netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:8000")}

// cut makes segments of at most size bytes of a stream, behind a SYN.
func cut(stream []byte, size int) []Segment {
	seq := uint32(0xffffff00) // wraps soon
	segs := []Segment{{Flow: testFlow, Seq: seq, SYN: true}}
	seq++
	for piece := range slices.Chunk(stream, size) {
		segs = append(segs, Segment{Flow: testFlow, Seq: seq, Payload: piece, Time: time.Unix(0, int64(len(segs)))})
		seq += uint32(len(piece))
	}
	return segs
}

func TestGaps(t *testing.T) {
	stream := pushStream(10, 1000)
	first := len(pushStream(0, 0))
	message := len(push(0, 1000))
	for _, tc := range []struct {
		name            string
		lose            func(i int) bool // segments of 500 bytes
		messages        uint64
		missing         uint64
		unsyncedAtLeast uint64
	}{
		{"nothing", func(int) bool { return false }, 10, 0, 0},
		{"inside values", func(i int) bool { return i == (first+2000)/500+1 }, 10, 500, 0},
		{"everything but the end", func(i int) bool { return i > 1 && i < 70 }, 0, 500 * 68, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			segs := slices.DeleteFunc(cut(stream, 500), func() func(Segment) bool {
				i := -1
				return func(Segment) bool { i++; return tc.lose(i) }
			}())
			_, totals := replay(segs)
			if totals.Messages != tc.messages || totals.MissingBytes != tc.missing || totals.UnsyncedBytes < tc.unsyncedAtLeast ||
				tc.unsyncedAtLeast == 0 && totals.UnsyncedBytes > 0 {
				t.Errorf("message of %d bytes: %+v", message, totals)
			}
		})
	}
}

// After a gap across messages, the next message that begins with a segment is
// found.
func TestResyncAfterGap(t *testing.T) {
	segs := cut(pushStream(0, 0), 1000)
	seq := segs[len(segs)-1].Seq + uint32(len(segs[len(segs)-1].Payload))
	for ts := range 10 {
		s := Segment{Flow: testFlow, Seq: seq, Payload: push(ts, 20)}
		seq += uint32(len(s.Payload))
		if ts != 3 && ts != 4 {
			segs = append(segs, s)
		}
	}
	list, totals := replay(segs)
	if len(list) != 8 || totals.UnsyncedBytes != 0 || totals.MissingBytes != 2*uint64(len(push(0, 20))) {
		t.Errorf("%d messages, %+v", len(list), totals)
	}
}

// Packets recorded with a short snaplen lack the end of their payload.
func TestShortSnaplen(t *testing.T) {
	segs := cut(pushStream(0, 0), 1000)
	seq := segs[len(segs)-1].Seq + uint32(len(segs[len(segs)-1].Payload))
	for ts := range 5 {
		p := push(ts, 1000)
		segs = append(segs, Segment{Flow: testFlow, Seq: seq, Payload: p[:200], Missing: len(p) - 200})
		seq += uint32(len(p))
	}
	list, totals := replay(segs)
	if len(list) != 5 || totals.UnsyncedBytes != 0 || totals.MissingBytes == 0 {
		t.Errorf("%d messages, %+v", len(list), totals)
	}
}

func TestForeignStreams(t *testing.T) {
	for _, says := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\x16\x03\x01\x02\x00\x01", string(make([]byte, 3000))} {
		list, totals := replay(cut([]byte(says), 700))
		if len(list) != 0 || totals.ForeignStreams != 1 || totals.UnsyncedBytes != uint64(len(says)) {
			t.Errorf("%.10q: %d messages, %+v", says, len(list), totals)
		}
	}
	// ZMTP, but not PS-lite.
	g := zmtp.NewGreeting(0, 0)
	b := zmtp.AppendReady(g[:], "PUB", nil)
	b = append(zmtp.AppendHeader(b, zmtp.FrameHeader(5, false)), "hello"...)
	list, totals := replay(cut(b, 700))
	if len(list) != 0 || totals.NotPSLite != 1 || totals.UnsyncedBytes != 7 || totals.Frames != 1 {
		t.Errorf("%d messages, %+v", len(list), totals)
	}
}

// Every dialect is told from a connection's own messages, also when its
// beginning was missed; BytePS's answers name their sender first.
func TestEveryDialectInAStream(t *testing.T) {
	base := pslite.Meta{Timestamp: 3, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	push, pull, answer := base, base, pslite.Meta{Timestamp: 3, Push: true}
	push.Request, push.Push = true, true
	pull.Request, pull.Pull = true, true
	for _, d := range []pslite.Dialect{pslite.DMLC, pslite.DMLC2018, pslite.DMLC2017, pslite.BytePSRaw} {
		var segs []Segment
		seq := uint32(100)
		send := func(b []byte) {
			segs = append(segs, Segment{Flow: testFlow, Seq: seq, Payload: b})
			seq += uint32(len(b))
		}
		frames := func(all ...[]byte) (b []byte) {
			for i, f := range all {
				b = zmtp.AppendHeader(b, zmtp.FrameHeader(len(f), i < len(all)-1))
				b = append(b, f...)
			}
			return b
		}
		keys, vals := make([]byte, 16), make([]byte, 8)
		send(frames(push.Append(nil, d), keys, vals))
		send(frames(pull.Append(nil, d), keys, nil))
		if d == pslite.BytePSRaw {
			send(frames([]byte("ps10"), answer.Append(nil, d)))
		} else {
			send(frames(answer.Append(nil, d)))
		}
		for first := range segs {
			list, totals := replay(segs[first:])
			if len(list) != 3-first || totals.UnsyncedBytes != 0 {
				t.Fatalf("%s from message %d on: %q, %+v", d, first, list, totals)
			}
			for i, l := range list {
				kind := []string{"push ", "pull ", "push-answer "}[first+i]
				if !strings.HasPrefix(l, d.String()+" ") || !strings.Contains(l, " "+kind) {
					t.Errorf("%s: got %s, want a %s", d, l, kind)
				}
			}
			if d == pslite.BytePSRaw && !strings.Contains(list[len(list)-1], " server1 ") {
				t.Errorf("the answer's sender: %s", list[len(list)-1])
			}
		}
	}
}

// A port that is used again is another connection.
func TestPortReuse(t *testing.T) {
	segs := cut(pushStream(2, 5), 100)
	again := cut(pushStream(3, 5), 90)
	for i := range again {
		again[i].Seq += 12345
	}
	segs[len(segs)-1].FIN = true
	if _, totals := replay(append(segs, again...)); totals.Messages != 5 || totals.Connections != 2 || totals.UnsyncedBytes != 0 {
		t.Errorf("%+v", totals)
	}
}

// Sizes that a stream only claims take no memory.
func TestClaimsCostNothing(t *testing.T) {
	g := zmtp.NewGreeting(1, 3)
	greeting := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
	meta := push(1, 1)
	meta = meta[:2+meta[1]] // only the meta frame
	for name, tail := range map[string][]byte{
		"a meta of 2^62 bytes": zmtp.AppendHeader(nil, zmtp.Header{Flags: zmtp.Long, Size: 1 << 62}),
		"keys of 2^62 bytes":   zmtp.AppendHeader(meta, zmtp.Header{Flags: zmtp.Long | zmtp.More, Size: 1 << 62}),
		"endless empty frames": bytes.Repeat([]byte{1, 0}, 1<<20),
	} {
		stream := append(bytes.Clone(greeting), tail...)
		stream = append(stream, make([]byte, 1<<20)...)
		segs := cut(stream, 60000)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		j := newJob(Options{Data: true}, nil)
		a := NewAssembler(j.openDirection)
		for i := range segs {
			a.Add(&segs[i])
		}
		a.Close()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 8*uint64(len(stream)) {
			t.Errorf("%s: %d bytes of memory for %d bytes of stream", name, got, len(stream))
		}
		if j.totals.Messages != 0 || j.totals.UnsyncedBytes == 0 {
			t.Errorf("%s: %+v", name, j.totals)
		}
	}
}
