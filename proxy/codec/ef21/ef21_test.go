package ef21

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

var allKinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

// compressors are some of each sort.
var compressors = []Config{
	{Sparsity: 0.5}, {Sparsity: 0.95}, {Sparsity: 0.95, Half: true}, {Sparsity: 0.9, Bits: 4, Bucket: 64},
	{Bits: 8, Bucket: 512}, {Bits: 4, Bucket: 512}, {Bits: 2, Bucket: 64}, {Bits: 3, Bucket: 5000},
	{Bits: 4, Bucket: 512, Packed: true}, {Bits: 8, Bucket: 8, Packed: true}, {Bits: 3, Bucket: 60_000, Packed: true},
}

// walk is a vector that changes: numbers of very different size, of which some
// stay.
type walk struct {
	rng  *rand.Rand
	kind element.Kind
	x    []byte
}

func newWalk(seed uint64, kind element.Kind, n int) *walk {
	w := &walk{rand.New(rand.NewPCG(seed, 1)), kind, make([]byte, n*kind.Size())}
	for i := range n {
		kind.Put(w.x, i, w.rng.NormFloat64())
	}
	return w
}

func (w *walk) step(scale float64) {
	for i := range len(w.x) / w.kind.Size() {
		if w.rng.IntN(3) > 0 {
			w.kind.Put(w.x, i, w.kind.At(w.x, i)+scale*w.rng.NormFloat64()*math.Exp(w.rng.NormFloat64()))
		}
	}
}

func distance(kind element.Kind, a, b []byte) float64 {
	sum := 0.0
	for i := range len(a) / kind.Size() {
		d := kind.At(a, i) - kind.At(b, i)
		sum += float64(d * d)
	}
	return math.Sqrt(sum)
}

// Both copies are the same after every vector, bit for bit, and nearer to it than
// before; once it stays as it is they become it.
func TestCopiesFollow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		c := rapid.SampledFrom(compressors).Draw(t, "compressor")
		n := rapid.IntRange(1, 3000).Draw(t, "n")
		w := newWalk(rapid.Uint64().Draw(t, "seed"), kind, n)
		offset := rapid.IntRange(0, 1).Draw(t, "alignment")
		here := append(make([]byte, offset, offset+len(w.x)), w.x...)[offset:]
		there := bytes.Clone(w.x)
		var e Encoder
		var d Decoder
		var tau Threshold
		follow := func() {
			before := distance(kind, w.x, here)
			wire, sent, ok := e.Append([]byte("before"), c, kind, &tau, here, w.x)
			if !ok || sent > n {
				t.Fatalf("%v, %d of %d numbers", ok, sent, n)
			}
			rest, err := d.Decode(kind, there, append(wire[6:], "after"...))
			if err != nil || string(rest) != "after" {
				t.Fatalf("%v; %q follows", err, rest)
			}
			if !bytes.Equal(here, there) {
				t.Fatal("the copies differ")
			}
			if after := distance(kind, w.x, here); after > before*1.0001 {
				t.Fatalf("the copy was %g away, and now is %g", before, after)
			}
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			w.step(math.Ldexp(1, rapid.IntRange(-8, 2).Draw(t, "scale")))
			follow()
		}
		began := distance(kind, w.x, here)
		for range 200 {
			follow()
		}
		if ended := distance(kind, w.x, here); ended > began/50 && ended > 1e-2*distance(kind, w.x, make([]byte, len(w.x))) {
			t.Fatalf("%+v, %d of %v: it was %g away when the numbers stayed, and still is %g", c, n, kind, began, ended)
		}
	})
}

// The copy is that of the algorithm as printed.
func TestEqualsLiteral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		c := rapid.SampledFrom(compressors).Draw(t, "compressor")
		n := rapid.IntRange(1, 8000).Draw(t, "n")
		w := newWalk(rapid.Uint64().Draw(t, "seed"), kind, n)
		here := bytes.Clone(w.x)
		l := &literal{kind: kind, c: c, w: numbers(kind, w.x)}
		var e Encoder
		var tau Threshold
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			w.step(math.Ldexp(1, rapid.IntRange(-6, 1).Draw(t, "scale")))
			_, sent, ok := e.Append(nil, c, kind, &tau, here, w.x)
			if want := l.step(numbers(kind, w.x)); !ok || c.Sparsity > 0 && sent != want {
				t.Fatalf("%+v: %d of %d numbers went, want %d", c, sent, n, want)
			}
			// Where levels are a number's nearest by a hair, either may be: then the
			// copies go apart by a step.
			off := 0
			for i, want := range l.w {
				if got := kind.At(here, i); math.Abs(got-want) > 1e-5*math.Abs(want)+1e-6 && kind.Size() > 2 {
					off++
				}
				l.w[i] = kind.At(here, i)
			}
			if off > n/1000+1 {
				t.Fatalf("%+v: %d of %d numbers of the copy are others", c, off, n)
			}
		}
	})
}

func numbers(kind element.Kind, b []byte) []float64 {
	v := make([]float64, len(b)/kind.Size())
	for i := range v {
		v[i] = kind.At(b, i)
	}
	return v
}

// So many times fewer bytes go, while the threshold stays for many vectors.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		Config
		least, most float64
	}{
		{Config{Sparsity: 0.95}, 18, 25}, {Config{Sparsity: 0.99}, 80, 125}, {Config{Sparsity: 0.95, Half: true}, 35, 55},
		{Config{Sparsity: 0.95, Bits: 4, Bucket: 512}, 55, 80}, {Config{Bits: 4, Bucket: 512}, 7.7, 8}, {Config{Bits: 8, Bucket: 512}, 3.9, 4},
		{Config{Bits: 4, Bucket: 512, Packed: true}, 15, 30},
	} {
		w := newWalk(3, element.Float32, 100_000)
		here := bytes.Clone(w.x)
		var e Encoder
		var tau Threshold
		sum, renewals := 0, 0
		for range 40 {
			w.step(0.01)
			if !tau.known {
				renewals++
			}
			wire, _, _ := e.Append(nil, c.Config, element.Float32, &tau, here, w.x)
			sum += len(wire)
		}
		if times := 40 * float64(len(w.x)) / float64(sum); times < c.least || times > c.most || c.Sparsity > 0 && renewals > 30 {
			t.Errorf("%+v: %.1f times fewer bytes, want %v to %v; %d thresholds", c.Config, times, c.least, c.most, renewals)
		}
	}
}

// Packed differences are those that are not, in blocks that are full and some that
// are not, and in chunks that are longer than a block; what does not become shorter
// takes some bytes more.
func TestPackedIsTheSame(t *testing.T) {
	for _, c := range []Config{{Bits: 4, Bucket: 512}, {Bits: 8, Bucket: 8}, {Bits: 8, Bucket: 1 << 16}} {
		for _, n := range []int{1, 40, 4096, 300_000} {
			for _, scale := range []float64{0, 1, 0x1p-120} { // of the last some buckets go as they are
				w := newWalk(6, element.Float32, n)
				w.step(1)
				plain, packed, there := make([]byte, len(w.x)), make([]byte, len(w.x)), make([]byte, len(w.x))
				for i := range n {
					element.Float32.Put(w.x, i, scale*element.Float32.At(w.x, i))
				}
				var e Encoder
				var d Decoder
				want, _, _ := e.Append(nil, c, element.Float32, new(Threshold), plain, w.x)
				c.Packed = true
				got, _, _ := e.Append(nil, c, element.Float32, new(Threshold), packed, w.x)
				c.Packed = false
				rest, err := d.Decode(element.Float32, there, append(got, "after"...))
				if err != nil || string(rest) != "after" {
					t.Fatalf("%+v, %d numbers: %v; %q follows", c, n, err, rest)
				}
				if !bytes.Equal(plain, packed) || !bytes.Equal(plain, there) {
					t.Errorf("%+v, %d numbers: the copies differ", c, n)
				}
				if len(got) > len(want)+10+len(want)/1000 {
					t.Errorf("%+v, %d numbers: %d bytes became %d", c, n, len(want), len(got))
				}
			}
		}
	}
}

// What is not finite goes as a number, or is said to be impossible.
func TestNotFinite(t *testing.T) {
	for _, kind := range allKinds {
		for _, c := range compressors {
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				w := newWalk(4, kind, 1000)
				here := bytes.Clone(w.x)
				var e Encoder
				var tau Threshold
				w.step(0.1)
				was := kind.At(w.x, 500)
				kind.Put(w.x, 500, bad)
				wire, _, ok := e.Append([]byte("before"), c, kind, &tau, here, w.x)
				exact := c.Bits == 0 && (!c.Half || kind.Size() == 2)
				if ok != exact {
					t.Fatalf("%v, %+v, %g: ok %v", kind, c, bad, ok)
				}
				if !ok {
					if string(wire) != "before" {
						t.Errorf("%v, %+v: refused, but %q was appended", kind, c, wire)
					}
					continue
				}
				if got := kind.At(here, 500); got != bad && bad == bad || got == got && bad != bad {
					t.Errorf("%v: %g came as %g", kind, bad, got)
				}
				kind.Put(w.x, 500, was)
				if e.Append(nil, c, kind, &tau, here, w.x); kind.At(here, 500) != was {
					t.Errorf("%v: after %g %g came as %g", kind, bad, was, kind.At(here, 500))
				}
			}
		}
	}
}

// FuzzDecode: whatever bytes come, there is an error or a copy as long as before.
func FuzzDecode(f *testing.F) {
	for _, c := range compressors {
		w := newWalk(5, element.Float32, 300)
		here := bytes.Clone(w.x)
		w.step(1)
		var e Encoder
		wire, _, _ := e.Append(nil, c, element.Float32, new(Threshold), here, w.x)
		f.Add(wire, uint16(300), uint8(0))
	}
	f.Fuzz(func(t *testing.T, src []byte, n uint16, k uint8) {
		kind := allKinds[int(k)%len(allKinds)]
		copied := make([]byte, int(n)*kind.Size())
		var d Decoder
		rest, err := d.Decode(kind, copied, src)
		if err != nil && !errors.Is(err, ErrCorrupt) || len(rest) > len(src) {
			t.Errorf("%v; %d of %d bytes follow", err, len(rest), len(src))
		}
	})
}

// Numbers beside many that are not finite, and stay so, go like others.
func TestNumbersBesideNaNsGo(t *testing.T) {
	const n = 96
	values, copied := make([]byte, 4*n), make([]byte, 4*n)
	for i := range n {
		v := float32([]float64{math.NaN(), math.Inf(1), 1, -2, 3, 4}[i%6])
		binary.LittleEndian.PutUint32(copied[4*i:], math.Float32bits(v))
		if v-v == 0 {
			v += float32(i)
		}
		binary.LittleEndian.PutUint32(values[4*i:], math.Float32bits(v))
	}
	var e Encoder
	var threshold Threshold
	for range 30 {
		if _, _, ok := e.Append(nil, Config{Sparsity: 0.9}, element.Float32, &threshold, copied, values); !ok {
			t.Fatal("refused")
		}
	}
	if !bytes.Equal(copied, values) {
		t.Error("after 30 vectors the receiver does not have all numbers")
	}
}
