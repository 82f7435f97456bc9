package unchanged

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

var allKinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

// Whatever answers come in whatever order, what is decoded is what was encoded,
// and neither end keeps more than its limits or anything the other does not.
func TestAnyAnswersComeThrough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Bytes: rapid.IntRange(0, 400).Draw(t, "bytes"), Answers: rapid.IntRange(0, 4).Draw(t, "answers")}
		s, r := NewSender(limits), NewReceiver(limits)
		last := map[uint64][]byte{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.Uint64Range(0, 6).Draw(t, "name")
			kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
			values := bytes.Clone(last[name])
			if values == nil || rapid.IntRange(0, 5).Draw(t, "new") == 0 {
				values = rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "values")
			}
			for range min(len(values), rapid.IntRange(0, 5).Draw(t, "changes")) {
				values[rapid.IntRange(0, len(values)-1).Draw(t, "at")]++
			}
			last[name] = values
			wire, ok := s.Append([]byte("before"), name, kind, values)
			if !ok {
				if string(wire) != "before" {
					t.Fatalf("refused, but %q was appended", wire)
				}
				continue
			}
			got, rest, err := r.Decode(append(wire[6:], "after"...))
			if err != nil || string(rest) != "after" || !bytes.Equal(got, values) {
				t.Fatalf("%d bytes of %d: %v, %q follows, equal %v", len(values), name, err, rest, bytes.Equal(got, values))
			}
			if s.bytes != r.Bytes() || s.bytes > limits.Bytes || len(s.kept) > limits.Answers || len(r.slots) > limits.Answers {
				t.Fatalf("%d and %d bytes of %d, %d answers of %d", s.bytes, r.Bytes(), limits.Bytes, len(s.kept), limits.Answers)
			}
		}
	})
}

func TestBytesFollowWhatChanged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s, r := NewSender(DefaultLimits), NewReceiver(DefaultLimits)
	values := random(rng, 400_000)
	for _, step := range []struct {
		changed, most int
	}{{100_000, 400_020}, {0, 20}, {1000, 1000*4 + 1500}, {100_000, 400_020}, {0, 20}} {
		for _, i := range rng.Perm(100_000)[:step.changed] {
			binary.LittleEndian.PutUint32(values[i*4:], binary.LittleEndian.Uint32(values[i*4:])+1)
		}
		wire, ok := s.Append(nil, 1, element.Float32, values)
		if !ok || len(wire) > step.most {
			t.Errorf("%d of 100000 numbers changed: %d bytes, ok %v", step.changed, len(wire), ok)
		}
		if got, _, err := r.Decode(wire); err != nil || !bytes.Equal(got, values) {
			t.Fatal(err)
		}
	}
	if s.Changed() != 101_000 {
		t.Errorf("%d numbers are counted as changed, want 101000", s.Changed())
	}
}

// What the receiver was not sent it notices.
func TestDisagreementIsNoticed(t *testing.T) {
	limits := Limits{Bytes: 100, Answers: 2}
	wires := func() [][]byte {
		s := NewSender(limits)
		var wires [][]byte
		for i, name := range []uint64{1, 1, 2, 2, 3, 1} {
			values := bytes.Repeat([]byte{byte(i)}, 40)
			wire, ok := s.Append(nil, name, element.Float32, values)
			if !ok {
				t.Fatal("refused")
			}
			wires = append(wires, wire)
		}
		return wires
	}()
	for lost := range wires[:len(wires)-1] {
		r := NewReceiver(limits)
		var err error
		for i, wire := range wires {
			if i != lost {
				if _, _, err = r.Decode(wire); err != nil {
					break
				}
			}
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("without answer %d: %v", lost, err)
		}
	}
	r := NewReceiver(limits)
	if _, _, err := r.Decode(wires[0]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Decode(wires[1]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Decode(wires[1]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an answer twice: %v", err)
	}
	for end := range wires[2] {
		if _, _, err := r.Decode(wires[2][:end]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the first %d of %d bytes: %v", end, len(wires[2]), err)
		}
	}
}

func TestNothingIsAllocatedForChanges(t *testing.T) {
	s, r := NewSender(DefaultLimits), NewReceiver(DefaultLimits)
	values := random(rand.New(rand.NewPCG(3, 4)), 40_000)
	var wire []byte
	step := func() {
		values[1000]++
		var ok bool
		if wire, ok = s.Append(wire[:0], 1, element.Float32, values); !ok {
			t.Fatal("refused")
		}
		if _, _, err := r.Decode(wire); err != nil {
			t.Fatal(err)
		}
	}
	step()
	step()
	if allocs := testing.AllocsPerRun(10, step); allocs != 0 {
		t.Errorf("%g allocations", allocs)
	}
}

func FuzzDecode(f *testing.F) {
	limits := Limits{Bytes: 1000, Answers: 3}
	rng := rand.New(rand.NewPCG(5, 6))
	s := NewSender(limits)
	values := random(rng, 200)
	a, _ := s.Append(nil, 1, element.Float32, values)
	values[5]++
	b, _ := s.Append(nil, 1, element.Float64, values)
	c, _ := s.Append(nil, 2, element.Float16, random(rng, 900))
	f.Add(a, b, c)
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		r := NewReceiver(limits)
		for _, wire := range [][]byte{a, b, c} {
			values, rest, err := r.Decode(wire)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				return
			}
			if r.Bytes() > limits.Bytes || len(r.slots) > limits.Answers || len(values) > limits.Bytes || !bytes.HasSuffix(wire, rest) {
				t.Fatalf("%d bytes kept in %d slots", r.Bytes(), len(r.slots))
			}
		}
	})
}
