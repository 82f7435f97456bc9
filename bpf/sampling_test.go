package bpf

import (
	"fmt"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestSamplingIsTheSameInKernelAndGo: of every message exactly that is copied
// which Sampling says, for each change made while the stream goes on.
func TestSamplingIsTheSameInKernelAndGo(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{})
	m := newStreamMaker(3)
	for i, s := range []Sampling{
		{},
		{Window: 1, OneIn: 1, SampledMetasOnly: true},
		{Window: 4, OneIn: 3},
		{Window: 16, OneIn: 100, SampledMetasOnly: true},
		{Window: 7, OneIn: 2, AnswerKeys: true},
		{OneIn: 2, ValueBytes: 40, ValuesOneIn: 3},
		{ValueBytes: 4},
		{Window: 1 << 31, OneIn: 1 << 31},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if err := f.c.SetSampling(s); err != nil {
				t.Fatal(err)
			}
			stream := m.job(0, 0)
			var asked []asked
			for range 300 {
				asked = append(asked, m.request(&stream, s))
			}
			values := map[uint64]int{}
			got := &transcript{}
			for j, seg := range m.cut(uint32(i+1), stream) {
				f.send(t, seg)
				f.c.ring.drain(func(batch []byte) {
					if err := f.c.unpack(batch, func(r *Record) {
						if r.Kind == KindValues {
							values[r.Message] += len(r.Data)
						}
						got.add(r)
					}); err != nil {
						t.Fatal(j, err)
					}
				})
			}
			told := map[uint64]message{}
			for j, number := range got.numbers {
				told[number] = got.messages[j]
			}
			for j, want := range asked {
				k, ok := told[uint64(j)]
				if ok != want.meta || (len(k.keys) > 0) != want.keys || values[uint64(j)] != want.values {
					t.Fatalf("message %d, %+v: told %v, %d bytes of keys, %d of values", j, want, ok, len(k.keys), values[uint64(j)])
				}
			}
		})
	}
}

// asked is what must be copied of a message.
type asked struct {
	timestamp     int32
	request, push bool
	meta, keys    bool
	values        int
}

// request appends a message with keys and values and says what must be copied
// of it.
func (m *streamMaker) request(b *[]byte, s Sampling) asked {
	a := asked{timestamp: m.Int32() >> m.IntN(32), request: m.IntN(2) == 0, push: m.IntN(2) == 0}
	meta := []byte{8, 1, 0x20, flag(a.request), 0x28, flag(a.push), 0x30, 0, 0x38, 0, 0x40}
	for v := uint32(a.timestamp); ; v >>= 7 {
		if v < 0x80 {
			meta = append(meta, byte(v))
			break
		}
		meta = append(meta, byte(v)|0x80)
	}
	valueBytes := 4 * m.IntN(100)
	*b = m.frame(*b, meta, true)
	*b = m.frame(*b, m.bytes(8+8*m.IntN(50)), true)
	*b = m.frame(*b, m.bytes(valueBytes), false)
	sampled := s.Includes(a.timestamp)
	a.meta = sampled || !s.SampledMetasOnly
	a.keys = sampled && (a.request || s.AnswerKeys)
	if a.request && a.push && s.IncludesValues(a.timestamp) {
		a.values = min(valueBytes, int(s.ValueBytes))
	}
	return a
}

func TestSamplingSharesWindows(t *testing.T) {
	s := Sampling{Window: 8, OneIn: 10}
	included := 0
	for w := range int32(10_000) {
		first := s.Includes(8 * w)
		for i := range int32(8) {
			if s.Includes(8*w+i) != first {
				t.Fatalf("window %d is torn", w)
			}
		}
		if first {
			included++
		}
	}
	if included < 900 || included > 1100 {
		t.Errorf("%d of 10,000 windows are sampled, want about 1,000", included)
	}
}
