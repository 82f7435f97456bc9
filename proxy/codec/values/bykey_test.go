package values

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Whatever keys are asked for in whatever order, the worker gets every bit, and
// both ends remember the same within the bound.
func TestByKeyIsLossless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{0, 300, 2000, 20_000}).Draw(t, "limit")
		s, r := newByKey(limit), newByKey(limit)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		now := map[uint64]byte{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			width := rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "width")
			kind := rapid.SampledFrom([]element.Kind{element.Float32, element.Float32, element.Float64, element.Float16}).Draw(t, "kind")
			list := randomKeys(rng, rapid.IntRange(1, 40).Draw(t, "keys"), 100)
			keys := pslite.Keys(pslite.AppendKeys(nil, list))
			values := make([]byte, 0, len(list)*width*kind.Size())
			for _, k := range list {
				if rng.IntN(3) == 0 {
					now[k] = byte(rng.Uint32())
				}
				values = append(values, bytes.Repeat([]byte{now[k]}, width*kind.Size())...)
			}
			first := rng.IntN(len(list))
			part := values[first*width*kind.Size():]
			p := piece{first: first, keys: len(list) - first, to: len(part), width: width, kind: kind, known: true}
			wire, _, ok := s.append([]byte("before"), &p, keys, part)
			if !ok {
				if p.keys*cellBytes+len(part) <= limit || string(wire) != "before" {
					t.Fatalf("%d keys of %d bytes are refused under a limit of %d", p.keys, len(part), limit)
				}
				continue
			}
			out := bytes.Repeat([]byte{77}, len(part)+5)
			n, rest, err := r.read(append(wire[7:], "after"...), keys, out)
			if err != nil || n != len(part) || !bytes.Equal(out[:n], part) || string(rest) != "after" || !bytes.Equal(out[n:], bytes.Repeat([]byte{77}, 5)) {
				t.Fatalf("%d bytes came for %d: %v, %q follows", n, len(part), err, rest)
			}
			if s.left != r.left || s.left < 0 {
				t.Fatalf("room for %d bytes at one end, %d at the other", s.left, r.left)
			}
		}
	})
}

// Mini-batches name other keys each time; what they have in common, and has not
// changed, goes once.
func TestByKeySavesWhereListsDiffer(t *testing.T) {
	e := newEnds(t, Rule{Unchanged: true})
	w := e.dial(t, e.server, e.worker, "ps8")
	defer w.close()
	rng := rand.New(rand.NewPCG(1, 1))
	model := make([]float32, 3000)
	for i := range model {
		model[i] = float32(rng.NormFloat64())
	}
	var first, later int
	for step := range 60 {
		for range 100 {
			model[rng.IntN(len(model))] += float32(rng.NormFloat64())
		}
		q := request{timestamp: int32(step), pull: true, answer: true, keys: randomKeys(rng, 1000, uint64(len(model)-1))}
		for _, k := range q.keys {
			q.vals = append(q.vals, model[k])
		}
		want := q.frames()
		before := w.encoded
		for i, f := range w.carry(t, want) {
			if !bytes.Equal(f, want[i]) {
				t.Fatalf("step %d: frame %d came differently", step, i)
			}
		}
		if step < 5 {
			first += w.encoded - before
		} else if step >= 55 {
			later += w.encoded - before
		}
	}
	t.Logf("the first five answers take %d bytes, the last five %d", first, later)
	if later*2 > first { // their keys take half
		t.Errorf("the first five answers take %d bytes, the last five %d", first, later)
	}
}

// A list of keys that comes again soon is not looked up key by key; one that
// comes again after an epoch is.
func TestListsThatComeAgain(t *testing.T) {
	var l lately
	if l.again(1) || !l.again(1) {
		t.Error("a list that comes twice is not known")
	}
	for name := range uint64(len(l.names)) {
		l.again(1000 + name)
	}
	if l.again(1) {
		t.Error("a list is known after as many others as are remembered")
	}
}

// What the sending end would not write is refused.
func TestByKeyRefuses(t *testing.T) {
	keys := pslite.Keys(pslite.AppendKeys(nil, []uint64{1, 2, 3}))
	p := piece{keys: 3, to: 12, width: 1, kind: element.Float32, known: true}
	s := newByKey(1000)
	good, _, ok := s.append(nil, &p, keys, pslite.AppendFloat32(nil, []float32{1, 2, float32(math.NaN())}))
	if !ok {
		t.Fatal("not encoded")
	}
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good[1:])
		b[at] = to
		return b
	}
	for name, c := range map[string]struct {
		src  []byte
		keys pslite.Keys
		out  int
	}{
		"empty": {nil, keys, 12}, "unknown flags": {change(0, 2), keys, 12}, "keys beyond the message's": {change(1, 1), keys, 12},
		"no keys": {change(2, 0), keys, 12}, "no values": {change(3, 0), keys, 12}, "more values than there is room": {change(3, 2), keys, 12},
		"another kind": {change(4, 9), keys, 12}, "no message's keys": {good[1:], nil, 12}, "too little room": {good[1:], keys, 8},
		"cut off": {good[1 : len(good)-1], keys, 12}, "another length of the vector": {change(5, 2), keys, 12},
	} {
		r := newByKey(1000)
		if _, _, err := r.read(c.src, c.keys, make([]byte, c.out)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	tiny := newByKey(100)
	if _, _, err := tiny.read(good[1:], keys, make([]byte, 12)); err == nil {
		t.Error("beyond the bound: no error")
	}
}
