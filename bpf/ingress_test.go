package bpf

import (
	"bytes"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// TestIngressMetas: of a received stream the metas of answers and of control
// messages are copied, whole and in order, and nothing else, however it is cut;
// egress is copied as ever.
func TestIngressMetas(t *testing.T) {
	require.BPF(t)
	for _, size := range []int{maxPayload, 100, 7} {
		m := newStreamMaker(41)
		greeting := zmtp.NewGreeting(1, 0)
		stream := zmtp.AppendReady(append([]byte{}, greeting[:]...), "DEALER", []byte("ps8"))
		var want [][]byte
		data := func(meta []byte, frames ...int) {
			stream = m.frame(stream, meta, len(frames) > 0)
			for i, n := range frames {
				stream = m.frame(stream, m.bytes(n), i+1 < len(frames))
			}
		}
		for range 200 {
			control, pushAnswer, pullAnswer := m.dmlcMeta(true, false, false), m.answer(), m.dmlcMeta(false, false, true)
			data(m.dmlcMeta(true, true, true), 8*m.IntN(30), m.IntN(900)) // a push
			data(m.dmlcMeta(true, false, true), 8*m.IntN(30), 0)          // a pull
			data(control)
			data(pushAnswer)
			data(pullAnswer, 8*m.IntN(30), m.IntN(900), m.IntN(90))
			want = append(want, control, pushAnswer, pullAnswer)
		}
		f := newFeeder(t, Options{Ingress: IngressMetas, IngressLoopback: true, Sampling: Sampling{AnswerKeys: true}})
		f.program = f.c.objects.ingress
		id := f.pieces(t, 5, stream, size)
		got, kinds := f.metas(t)
		if len(got) != len(want) {
			t.Fatalf("segments of %d: %d metas, want %d; %v, %v", size, len(got), len(want), kinds, f.counts(t))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("segments of %d, meta %d: %x, want %x", size, i, got[i], want[i])
			}
		}
		if kinds[KindKeys]+kinds[KindLens]+kinds[KindEnd] > 0 || kinds[KindOpen] != 1 || kinds[KindCommand] != 1 {
			t.Errorf("segments of %d: copied %v", size, kinds)
		}
		counts := f.counts(t)
		if lost := counts.Lost(); lost.Events != 0 {
			t.Errorf("lost: %v", counts)
		}
		messages, commands, _, err := readStream(stream, false)
		require.NoError(t, err)
		f.program = f.c.objects.egress
		f.pieces(t, 5, stream, size)
		f.collect(t)
		if diff := f.transcript(id).differ(messages, commands); diff != "" {
			t.Errorf("egress, segments of %d: %s", size, diff)
		}
	}
}

// A gap in a received stream loses times alone, and is counted as that.
func TestIngressMetasGap(t *testing.T) {
	require.BPF(t)
	m := newStreamMaker(43)
	stream := m.job(0, 0)
	for range 300 {
		stream = m.frame(stream, m.answer(), false)
	}
	f := newFeeder(t, Options{Ingress: IngressMetas, IngressLoopback: true})
	const size = 700
	f.program = f.c.objects.ingress
	f.pieces(t, 7, stream[:3*size], size)
	for at := 4 * size; at < len(stream); at += size {
		f.send(t, segment{stream: 7, seq: 100 + uint32(at), payload: stream[at:min(at+size, len(stream))]})
	}
	f.collect(t)
	counts := f.counts(t)
	if counts[ReasonUntimed].Bytes < size || counts.Lost() != counts[ReasonUntimed] {
		t.Errorf("lost: %v", counts)
	}
	metas := 0
	for _, s := range f.seen {
		metas += len(s.messages)
	}
	if metas < 200 || metas >= 300 {
		t.Errorf("%d of 300 answers were seen around a gap of %d bytes", metas, size)
	}
}

// metas returns the meta frames copied so far, and how many records of each
// kind came.
func (f *feeder) metas(t *testing.T) (metas [][]byte, kinds map[Kind]int) {
	t.Helper()
	kinds = map[Kind]int{}
	var meta []byte
	f.c.ring.drain(func(batch []byte) {
		if err := f.c.unpack(batch, func(r *Record) {
			kinds[r.Kind]++
			if r.Kind != KindMeta {
				return
			}
			meta = append(meta, r.Data...)
			if r.Has(EndsFrame) {
				metas, meta = append(metas, bytes.Clone(meta)), meta[:0]
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
	return metas, kinds
}

func TestParseIngressMode(t *testing.T) {
	for _, m := range []IngressMode{IngressOff, IngressMetas, IngressAll} {
		if got, err := ParseIngressMode(m.String()); err != nil || got != m {
			t.Errorf("%s: %v, %v", m, got, err)
		}
	}
	if _, err := ParseIngressMode("some"); err == nil {
		t.Error("some is no mode")
	}
	if _, err := (Options{Ingress: 9}).normal(); err == nil {
		t.Error("mode 9 was taken")
	}
}
