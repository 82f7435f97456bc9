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
		{Window: 1, OneIn: 1},
		{Window: 4, OneIn: 3},
		{Window: 16, OneIn: 100},
		{Window: 7, OneIn: 2, AnswerKeys: true},
		{Window: 1 << 31, OneIn: 1 << 31},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			require.NoError(t, f.c.SetSampling(s))
			stream := m.job(0, 0)
			var asked []asked
			for range 300 {
				asked = append(asked, m.request(&stream, s))
			}
			got := &transcript{}
			for j, seg := range m.cut(uint32(i+1), stream) {
				f.send(t, seg)
				f.c.ring.drain(func(batch []byte) {
					if err := f.c.unpack(batch, func(r *Record) {
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
				if !ok || (len(k.keys) > 0) != want.keys {
					t.Fatalf("message %d, %+v: told %v, %d bytes of keys", j, want, ok, len(k.keys))
				}
			}
		})
	}
}

// asked is what must be copied of a message.
type asked struct {
	timestamp     int32
	request, push bool
	keys          bool
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
	*b = m.frame(*b, meta, true)
	*b = m.frame(*b, m.bytes(8+8*m.IntN(50)), true)
	*b = m.frame(*b, m.bytes(4*m.IntN(100)), false)
	sampled := s.Includes(a.timestamp)
	a.keys = sampled && (a.request || s.AnswerKeys)
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

// Of each OneIn windows exactly one is sampled, so that no stretch of a job is
// long without one; and a denser sampling takes what a sparser one takes, so
// that hosts with different rates have the sparser one's windows in common.
func TestSamplingLeavesNoGap(t *testing.T) {
	for oneIn := uint32(2); oneIn <= 4096; oneIn *= 2 {
		s, denser := Sampling{Window: 4, OneIn: oneIn}, Sampling{Window: 4, OneIn: oneIn / 2}
		places := map[uint32]bool{}
		for group := range uint32(64) {
			n := 0
			for i := range oneIn {
				timestamp := int32(4 * (group*oneIn + i))
				if !s.Includes(timestamp) {
					continue
				}
				places[i] = true
				if n++; !denser.Includes(timestamp) {
					t.Fatalf("one in %d takes the window at %d, one in %d does not", oneIn, timestamp, oneIn/2)
				}
			}
			if n != 1 {
				t.Fatalf("of %d windows %d are sampled", oneIn, n)
			}
		}
		if len(places) < 2 {
			t.Errorf("one in %d takes the same window of each group: a job of that rhythm shows always the same keys", oneIn)
		}
	}
}

// A stream with a rate of its own is sampled by it, and says so with each
// message, until that is reset.
func TestRateOfAStream(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{})
	require.NoError(t, f.c.SetSampling(Sampling{OneIn: 2}))
	m := newStreamMaker(5)
	for i, own := range []Sampling{{Window: 4, OneIn: 8}, {}, {Window: 1, OneIn: 1}} {
		stream, number := m.job(0, 0), uint32(i+1)
		want, oneIn := Sampling{OneIn: 2}, uint32(0)
		if own.Window > 0 {
			want, oneIn = own, own.OneIn
		}
		var asked []asked
		for range 200 {
			asked = append(asked, m.request(&stream, want))
		}
		segments := m.cut(number, stream)
		if own.Window > 0 {
			require.NoError(t, f.c.SetRate(segments[0].id(), own.Window, own.OneIn, false))
		}
		got := &transcript{}
		for _, seg := range segments {
			f.send(t, seg)
			f.c.ring.drain(func(batch []byte) {
				if err := f.c.unpack(batch, func(r *Record) {
					if r.Has(Sampled) && r.OneIn() != oneIn {
						t.Fatalf("%s says one in %d, want %d", r.Kind, r.OneIn(), oneIn)
					}
					got.add(r)
				}); err != nil {
					t.Fatal(err)
				}
			})
		}
		for j, number := range got.numbers {
			if keys := len(got.messages[j].keys) > 0; keys != asked[number].keys {
				t.Fatalf("stream %d, message %d, %+v: keys copied %v", i, number, asked[number], keys)
			}
		}
	}
	var id StreamID
	for rated := range f.c.rated {
		id = rated
	}
	if len(f.c.rated) != 2 {
		t.Errorf("streams with rates of their own: %v", f.c.rated)
	}
	for _, reset := range []func() error{
		func() error { return f.c.ResetRate(id) },
		func() error { return f.c.resetRates(func(StreamID) bool { return false }) },
	} {
		require.NoError(t, reset())
	}
	var key, value = uint64(0), captureRate{}
	if f.c.objects.rates.Iterate().Next(&key, &value) || len(f.c.rated) > 0 {
		t.Errorf("rates are left: %d %+v, %v", key, value, f.c.rated)
	}
	if err := f.c.SetRate(id, 4, 3, false); err == nil {
		t.Error("one in 3 is no power of two")
	}
}
