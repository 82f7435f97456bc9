package bpf

import (
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestRests: what passes in a rest is not looked at, and afterwards messages are told again, none
// that was not sent. Every byte is in a message that was told, or has rested; none is missed.
func TestRests(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{Sampling: Sampling{AnswerKeys: true}})
	m := newStreamMaker(17)
	again := 0
	const streams = 2000
	for i := range streams {
		stream := m.longStream()
		want, _, _, err := readStream(stream, false)
		require.NoError(t, err)
		cut := onlyNew(m.cut(uint32(i+1), stream))
		id := cut[0].id()
		require.NoError(t, f.c.SetRate(id, 16, 1, i%8 != 0))
		from := 1 + m.IntN(len(cut)-1)
		to := from + m.IntN(len(cut)-from)
		segments := uint64(0)
		for j, s := range cut {
			if j == from || j == to {
				require.NoError(t, f.c.Rest(j < to))
			}
			f.send(t, s)
			if len(s.payload) > 0 && (i%8 == 0 || j < from || j >= to || s.flags&(tcpFin|tcpRst) != 0) {
				segments++
			}
		}
		f.collect(t)
		got := f.transcript(id)
		totals, _ := f.totals(t, id)
		if totals.Segments != segments {
			t.Fatalf("stream %d: %d segments looked at, want %d", i, totals.Segments, segments)
		}
		if !subsequence(got.messages, want) || totals.Missed > 0 || totals.Gaps > 0 {
			t.Fatalf("stream %d, a rest from segment %d to %d of %d: %+v", i, from, to, len(cut), totals)
		}
		if i%8 == 0 && (len(got.messages) != len(want) || totals.Rested > 0) {
			t.Fatalf("stream %d may not rest: %d of %d messages, %d bytes rested", i, len(got.messages), len(want), totals.Rested)
		}
		sent, seen := len(stream), int(totals.Rested)+told(got)
		// But for the greeting, commands and frame headers.
		if seen > sent || seen+64+300+36*(len(want)+1) < sent {
			t.Fatalf("stream %d: %d bytes, %d rested, %d in messages", i, sent, totals.Rested, told(got))
		}
		if len(got.messages) > len(want)/2 {
			again++
		}
		f.forget(t, id)
	}
	t.Logf("%d of %d streams told more than half of their messages", again, streams)
	if again < streams/2 {
		t.Errorf("only %d of %d streams recovered", again, streams)
	}
}
