package bpf

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// TestStreamsAreForgotten: closed streams are reported as gone after a while,
// once; idle ones only where the table is nearly full; new ones that find no
// place are counted.
func TestStreamsAreForgotten(t *testing.T) {
	require.BPF(t)
	const size = 16
	f := newFeeder(t, Options{Streams: size})
	now := time.Unix(1_000_000, 0)
	f.c.now = func() time.Time { return now }
	stream := newStreamMaker(29).job(2, 8)
	list := func() (all, gone int) {
		t.Helper()
		streams := require.Value(f.c.Streams())(t)
		for _, s := range streams {
			if s.Bytes != uint64(len(stream)) || s.Messages != 2 || s.Frames != 6 || s.Commands != 1 {
				t.Errorf("totals %+v", s)
			}
			if s.Gone {
				gone++
			}
		}
		return len(streams), gone
	}
	for i := range uint32(4) {
		f.pieces(t, i+1, stream, maxPayload)
		f.send(t, segment{stream: i + 1, seq: 100 + uint32(len(stream)), flags: tcpFin})
	}
	if all, gone := list(); all != 4 || gone != 0 {
		t.Errorf("%d streams, %d gone; want 4, none gone", all, gone)
	}
	now = now.Add(closedAfter)
	if all, gone := list(); all != 4 || gone != 4 {
		t.Errorf("%d streams, %d gone; want 4, all gone", all, gone)
	}
	if all, _ := list(); all != 0 {
		t.Errorf("%d streams; want none", all)
	}

	for i := range uint32(size + 3) {
		f.pieces(t, i+10, stream, maxPayload)
	}
	if all, gone := list(); all != size || gone != 0 {
		t.Errorf("%d streams, %d gone; want %d, none gone", all, gone, size)
	}
	if n := f.counts(t)[ReasonStreamTableFull].Events; n == 0 {
		t.Error("streams without a place were not counted")
	}
	now = now.Add(idleAfter)
	if all, gone := list(); all != size || gone != size {
		t.Errorf("%d streams, %d gone; want %d, all gone", all, gone, size)
	}
	f.collect(t)
	events := f.transcript(NewStreamID(segmentCookie(1), Egress)).events
	if len(events) != 2 || events[0] != KindOpen || events[1] != KindClose {
		t.Errorf("events %v; want open, close", events)
	}
}

// segmentCookie is what stands for the socket cookie of a made-up stream.
func segmentCookie(stream uint32) uint64 {
	return (&segment{stream: stream}).id().Cookie()
}
