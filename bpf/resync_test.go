package bpf

import (
	"bytes"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestLateStreams: a stream seen from its middle on is reported from some message
// on, whole and in order, and the bytes before count as missed.
func TestLateStreams(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{Sampling: Sampling{AnswerKeys: true}})
	m := newStreamMaker(11)
	synced := 0
	const streams = 2000
	for i := range streams {
		stream := m.longStream()
		want, _, _, err := readStream(stream, false)
		require.NoError(t, err)
		cut := onlyNew(m.cut(uint32(i+1), stream))
		first := 1 + m.IntN(len(cut)-1)
		seen := 0
		for _, s := range cut[first:] {
			s.flags = 0
			f.send(t, s)
		}
		f.collect(t)
		id := cut[0].id()
		got := f.transcript(id)
		if len(got.messages) > len(want) {
			t.Fatalf("stream %d: %d messages told of %d", i, len(got.messages), len(want))
		}
		got.commands = nil
		totals, followed := f.totals(t, id)
		if diff := got.differ(want[len(want)-len(got.messages):], nil); diff != "" {
			t.Fatalf("stream %d: events %v, %d of %d, numbers %v: %.300s", i, got.events, len(got.messages), len(want), got.numbers, diff)
		}
		if len(got.messages) > 0 {
			synced++
			if !totals.Late || !totals.Synced || !totals.PSLite || got.events[0] != KindOpen || got.events[1] != KindSynced {
				t.Fatalf("stream %d: %+v, events %v", i, totals, got.events)
			}
			seen = int(totals.Missed) + told(got)
			if all := int(totals.Bytes); seen > all || seen+36*len(got.messages) < all { // but for frame headers
				t.Fatalf("stream %d: %d bytes, %d missed, %d in messages", i, all, totals.Missed, told(got))
			}
		} else if followed && totals.Missed != totals.Bytes {
			t.Fatalf("stream %d: %d bytes, %d missed", i, totals.Bytes, totals.Missed)
		}
		f.forget(t, id)
	}
	t.Logf("%d of %d streams synchronised", synced, streams)
	if synced < streams*6/10 {
		t.Errorf("only %d of %d streams were synchronised", synced, streams)
	}
}

// onlyNew leaves out the segments that were sent again: a capture that begins
// with one sees it for new.
func onlyNew(cut []segment) []segment {
	var kept []segment
	end := cut[0].seq
	for _, s := range cut {
		if next := s.seq + uint32(len(s.payload)); int32(next-end) > 0 {
			kept = append(kept, s)
			end = next
		}
	}
	return kept
}

// told is the number of bytes in the messages' frames, short headers only.
func told(s *transcript) int {
	n := 0
	for _, m := range s.messages {
		for _, length := range m.lengths {
			n += int(length)
		}
	}
	return n
}

// longStream has some dozens of messages of every kind.
func (m *streamMaker) longStream() []byte {
	b := m.job(0, 0)
	for range 60 {
		b = m.message(b, m.dmlcMeta, false)
	}
	return b
}

// totals of a stream; false where it was given up as foreign, as happens to
// those of very short segments, in which no whole message stands.
func (f *feeder) totals(t *testing.T, id StreamID) (Stream, bool) {
	t.Helper()
	streams := require.Value(f.c.Streams())(t)
	for _, s := range streams {
		if s.ID == id {
			return s, true
		}
	}
	return Stream{}, false
}

// TestLostSegments: where segments never pass the program, the reports are still
// true: every message is one that was sent, in order, and those with a hole say so.
// After the loss the stream is synchronised again.
func TestLostSegments(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{Sampling: Sampling{AnswerKeys: true}})
	m := newStreamMaker(13)
	again := 0
	const streams = 2000
	for i := range streams {
		stream := m.longStream()
		want, _, _, err := readStream(stream, false)
		require.NoError(t, err)
		cut := m.cut(uint32(i+1), stream)
		lost := 1 + m.IntN(len(cut)-1)
		for j, s := range cut {
			if j != lost {
				f.send(t, s)
			}
		}
		f.collect(t)
		id := cut[0].id()
		got := f.transcript(id)
		if !subsequence(got.messages, want) {
			t.Fatalf("stream %d, without segment %d of %d: told what was not sent", i, lost, len(cut))
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

// subsequence reports whether the reported messages are some of those sent, in
// order; of incomplete ones the lengths are compared.
func subsequence(told, sent []message) bool {
	j := 0
	for i := range told {
		for j < len(sent) && !sameMessage(&told[i], &sent[j]) {
			j++
		}
		if j == len(sent) {
			return false
		}
		j++
	}
	return true
}

func sameMessage(a, b *message) bool {
	if a.lengths != b.lengths || !bytes.Equal(a.meta, b.meta) {
		return false
	}
	return a.incomplete || bytes.Equal(a.keys, b.keys) && bytes.Equal(a.lens, b.lens)
}
