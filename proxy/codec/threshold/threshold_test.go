package threshold

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

var allKinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

// bytesOf writes numbers as a gradient, and rounds them to what they became.
func bytesOf(kind element.Kind, numbers []float64) []byte {
	b := make([]byte, len(numbers)*kind.Size())
	for i, v := range numbers {
		kind.Put(b, i, v)
		numbers[i] = kind.At(b, i)
	}
	return b
}

// whole is the vector that a receiver makes of v.
func whole(v *sparse.Vector) []float64 {
	b := make([]byte, v.N*v.Kind.Size())
	v.Expand(b)
	numbers := make([]float64, v.N)
	for i := range numbers {
		numbers[i] = v.Kind.At(b, i)
	}
	return numbers
}

// left is the residual as numbers.
func left(l *Layer) []float64 {
	numbers := make([]float64, l.n)
	for i := range numbers {
		switch r := l.residual.(type) {
		case *narrow:
			numbers[i] = float64(r.e[i])
		case *wide:
			numbers[i] = r.e[i]
		}
	}
	return numbers
}

// same compares numbers bit for bit; all NaNs are one, and zeros have no sign
// where nothing was sent.
func same(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return x == y || x != x && y != y })
}

func gradients(t *rapid.T, n int) []float64 {
	ordinary := rapid.Custom(func(t *rapid.T) float64 {
		return math.Ldexp(rapid.Float64Range(-1, 1).Draw(t, "fraction"), rapid.IntRange(-4, 4).Draw(t, "exponent"))
	})
	special := rapid.SampledFrom([]float64{0, 0, math.Copysign(0, -1), 1, -1, math.Inf(1), math.NaN(), 1e-300, 1e38, 7e4, math.SmallestNonzeroFloat32})
	one := rapid.OneOf(ordinary, ordinary, ordinary, special)
	return rapid.SliceOfN(one, n, n).Draw(t, "gradient")
}

// Threshold, mask, values and error are those of the paper's pseudo-code, bit
// for bit.
func TestEqualsThePaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		n := rapid.IntRange(1, 200).Draw(t, "n")
		c := Config{
			Sparsity: rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.9, 0.99}).Draw(t, "sparsity"),
			Lifespan: rapid.IntRange(1, 4).Draw(t, "lifespan"),
			Exact:    rapid.Bool().Draw(t, "exact"),
		}
		l, err := NewLayer(kind, n, c)
		if err != nil {
			t.Fatal(err)
		}
		paper := newLiteral(kind, n, c)
		var w Workspace
		var out sparse.Vector
		for push := range rapid.IntRange(1, 8).Draw(t, "pushes") {
			g := gradients(t, n)
			if err := l.Compress(&w, &out, bytesOf(kind, g)); err != nil {
				t.Fatal(err)
			}
			sent := paper.push(g)
			if l.Threshold() != paper.tau {
				t.Fatalf("push %d: threshold %g, want %g", push, l.Threshold(), paper.tau)
			}
			if got := whole(&out); !same(got, sent) {
				t.Fatalf("push %d: sent %v, want %v", push, got, sent)
			}
			for i := range sent {
				if out.Mask.Has(i) != (sent[i] != 0) {
					t.Fatalf("push %d: mask %v at %d, sent %g", push, out.Mask.Has(i), i, sent[i])
				}
			}
			if got := left(l); !same(got, paper.error) {
				t.Fatalf("push %d: error %v, want %v", push, got, paper.error)
			}
		}
	})
}

// What is sent at a renewal has at least k/n of the squared norm (Stich and
// others, definition 2.1: the error has at most 1 - k/n of it).
func TestContraction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		sparsity := rapid.Float64Range(0, 0.999).Draw(t, "sparsity")
		l, err := NewLayer(element.Float32, n, Config{Sparsity: sparsity, Lifespan: 1})
		if err != nil {
			t.Fatal(err)
		}
		var w Workspace
		var out sparse.Vector
		for range 3 {
			g := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), n, n).Draw(t, "gradient")
			total := new(big.Float)
			b := bytesOf(element.Float32, g)
			for i, e := range left(l) {
				v := float64(float32(e + g[i]))
				total.Add(total, big.NewFloat(v*v))
			}
			if err := l.Compress(&w, &out, b); err != nil {
				t.Fatal(err)
			}
			kept := new(big.Float)
			for _, v := range whole(&out) {
				kept.Add(kept, big.NewFloat(v*v))
			}
			k := int64(n) - int64(math.Floor(float64(n)*sparsity))
			kept.Mul(kept, new(big.Float).SetInt64(int64(n)))
			total.Mul(total, new(big.Float).SetInt64(k))
			if slack := big.NewFloat(1 - 1e-12); kept.Cmp(total.Mul(total, slack)) < 0 {
				t.Fatalf("n %d, k %d: %v of %v", n, k, kept, total)
			}
		}
	})
}

// With Exact, what was sent and what is left is the sum of the gradients, with
// no rounding at all: compared in arithmetic of 400 bits.
func TestNothingIsLost(t *testing.T) {
	for _, kind := range allKinds {
		rng := rand.New(rand.NewPCG(1, uint64(kind)))
		const n, pushes = 2000, 120
		l, err := NewLayer(kind, n, Config{Sparsity: 0.97, Lifespan: 10, Slack: 0.1, DrainEvery: 50, Exact: true})
		if err != nil {
			t.Fatal(err)
		}
		pushed, sent := make([]*big.Float, n), make([]*big.Float, n)
		for i := range n {
			pushed[i], sent[i] = new(big.Float).SetPrec(400), new(big.Float).SetPrec(400)
		}
		var w Workspace
		var out sparse.Vector
		for push := range pushes {
			g := make([]float64, n)
			for i := range g {
				g[i] = rng.NormFloat64() * (1 + float64(i%5))
				if kind == element.Float64 {
					g[i] = math.Round(g[i] * 1e9) // sums of whole numbers do not round
				} else if math.Abs(g[i]) < 1e-5 {
					g[i] = 0 // within 2^29 of the largest
				}
			}
			if err := l.Compress(&w, &out, bytesOf(kind, g)); err != nil {
				t.Fatal(err)
			}
			if push == pushes-1 {
				add(sent, whole(&out))
				l.Flush(&out)
			}
			add(pushed, g)
			add(sent, whole(&out))
		}
		add(sent, left(l))
		for i := range n {
			if pushed[i].Cmp(sent[i]) != 0 {
				t.Fatalf("%v, number %d: %s pushed, %s sent or left", kind, i, pushed[i].Text('g', 30), sent[i].Text('g', 30))
			}
		}
		if l.Stats().Drains == 0 {
			t.Errorf("%v: no push drained the residual", kind)
		}
	}
}

func add(sums []*big.Float, numbers []float64) {
	for i, v := range numbers {
		sums[i].Add(sums[i], new(big.Float).SetFloat64(v))
	}
}

// Without Exact nothing is lost either where sums do not round, and otherwise
// no more than half a unit in the last place for each push.
func TestRoundingIsAllThatIsLost(t *testing.T) {
	const n, pushes = 500, 300
	rng := rand.New(rand.NewPCG(3, 4))
	l, err := NewLayer(element.Float32, n, Config{Sparsity: 0.95, Lifespan: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var w Workspace
	var out sparse.Vector
	pushed, sent, bound := make([]float64, n), make([]float64, n), make([]float64, n)
	for range pushes {
		g := make([]float64, n)
		for i := range g {
			g[i] = rng.NormFloat64()
			if i%2 == 0 {
				g[i] = math.Round(g[i] * 1000)
			}
		}
		b := bytesOf(element.Float32, g)
		for i, e := range left(l) {
			if exact := g[i] + e; exact != float64(float32(exact)) {
				bound[i] += math.Abs(exact) * 0x1p-24
			}
			pushed[i] += g[i]
		}
		if err := l.Compress(&w, &out, b); err != nil {
			t.Fatal(err)
		}
		for i, v := range whole(&out) {
			sent[i] += v
		}
	}
	for i, e := range left(l) {
		if gap := math.Abs(sent[i] + e - pushed[i]); gap > bound[i]+1e-12 {
			t.Errorf("number %d: %g lost, at most %g rounded", i, gap, bound[i])
		}
		if i%2 == 0 && bound[i] != 0 {
			t.Errorf("number %d: whole numbers rounded", i)
		}
	}
}

func TestFlushEmptiesTheResidual(t *testing.T) {
	for _, kind := range allKinds {
		l, err := NewLayer(kind, 100, Config{Sparsity: 0.9, Lifespan: 1})
		if err != nil {
			t.Fatal(err)
		}
		g := make([]float64, 100)
		for i := range g {
			g[i] = float64(i) / 128
		}
		var w Workspace
		var out sparse.Vector
		if err := l.Compress(&w, &out, bytesOf(kind, g)); err != nil {
			t.Fatal(err)
		}
		first := whole(&out)
		if count, squares := l.Residual(); count != 88 || !(squares > 0) {
			t.Errorf("%v: a residual of %d numbers, squares %g", kind, count, squares)
		}
		if !l.Flush(&out) {
			t.Errorf("%v: nothing flushed", kind)
		}
		for i, v := range whole(&out) {
			if v+first[i] != g[i] {
				t.Fatalf("%v: number %d is %g + %g, want %g", kind, i, first[i], v, g[i])
			}
		}
		if count, _ := l.Residual(); count != 0 || l.Flush(&out) {
			t.Errorf("%v: %d numbers left after a flush", kind, count)
		}
	}
}

// The numbers at some positions are a layer of their own where no other was
// pushed.
func TestCompressAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		n := rapid.IntRange(1, 60).Draw(t, "n")
		c := Config{Sparsity: 0.7, Lifespan: 2, Exact: rapid.Bool().Draw(t, "exact")}
		at := make([]uint32, n)
		for i := range at {
			at[i] = uint32(i*7 + 3)
		}
		part, err := NewLayer(kind, 7*n+3, c)
		if err != nil {
			t.Fatal(err)
		}
		alone, err := NewLayer(kind, n, c)
		if err != nil {
			t.Fatal(err)
		}
		var w Workspace
		var got, want sparse.Vector
		for range 5 {
			g := bytesOf(kind, gradients(t, n))
			if err := part.CompressAt(&w, &got, at, g); err != nil {
				t.Fatal(err)
			}
			if err := alone.Compress(&w, &want, g); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Mask, want.Mask) || !slices.Equal(got.Values, want.Values) {
				t.Fatalf("sent %v, alone %v", whole(&got), whole(&want))
			}
		}
		residual := left(part)
		for i, v := range left(alone) {
			if residual[at[i]] != v {
				t.Fatalf("residual %d is %g, alone %g", at[i], residual[at[i]], v)
			}
		}
	})
}

func TestNotFiniteIsSentAndForgotten(t *testing.T) {
	for _, kind := range allKinds {
		l, err := NewLayer(kind, 4, Config{Sparsity: 0.9, Lifespan: 100})
		if err != nil {
			t.Fatal(err)
		}
		var w Workspace
		var out sparse.Vector
		for _, g := range [][]float64{{1, 2, 3, 4}, {math.NaN(), math.Inf(1), math.Inf(-1), 0}} {
			if err := l.Compress(&w, &out, bytesOf(kind, g)); err != nil {
				t.Fatal(err)
			}
		}
		got := whole(&out)
		if got[0] == got[0] || got[1] != math.Inf(1) || got[2] != math.Inf(-1) {
			t.Errorf("%v: sent %v", kind, got)
		}
		if l.Stats().NonFinite != 3 {
			t.Errorf("%v: %d numbers counted as not finite", kind, l.Stats().NonFinite)
		}
		if e := left(l); !slices.Equal(e[:3], []float64{0, 0, 0}) {
			t.Errorf("%v: residual %v", kind, e)
		}
	}
}

// With nothing but NaNs and infinities there is no threshold to find, and the
// next gradient goes through.
func TestAllNotFinite(t *testing.T) {
	l, err := NewLayer(element.Float32, 100, Config{Sparsity: 0.99, Lifespan: 100})
	if err != nil {
		t.Fatal(err)
	}
	g := make([]float64, 100)
	for i := range g {
		g[i] = math.NaN()
	}
	var w Workspace
	var out sparse.Vector
	if err := l.Compress(&w, &out, bytesOf(element.Float32, g)); err != nil {
		t.Fatal(err)
	}
	if out.Count() != 100 || l.Threshold() != 0 {
		t.Errorf("%d sent, threshold %g", out.Count(), l.Threshold())
	}
	if err := l.Compress(&w, &out, bytesOf(element.Float32, []float64{99: 5})); err != nil || out.Count() != 1 {
		t.Errorf("%d sent after that, %v", out.Count(), err)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []Config{
		{Sparsity: 1, Lifespan: 1}, {Sparsity: -0.1, Lifespan: 1}, {Sparsity: math.NaN(), Lifespan: 1},
		{Sparsity: 0.9}, {Sparsity: 0.9, Lifespan: 1, Warmup: -1}, {Sparsity: 0.9, Lifespan: 1, Slack: -1},
		{Sparsity: 0.9, Lifespan: 1, DrainEvery: -1},
	} {
		if _, err := NewLayer(element.Float32, 10, c); err == nil || !strings.Contains(err.Error(), "must") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	l, err := NewLayer(element.Float32, 10, DefaultConfig)
	if err != nil {
		t.Fatal(err)
	}
	var w Workspace
	var out sparse.Vector
	if err := l.Compress(&w, &out, make([]byte, 36)); !errors.Is(err, ErrLength) {
		t.Errorf("a gradient of 9 numbers for a layer of 10: %v", err)
	}
	if err := l.CompressAt(&w, &out, []uint32{10}, make([]byte, 4)); err == nil {
		t.Error("a position beyond the layer was taken")
	}
	if err := l.CompressAt(&w, &out, []uint32{1}, make([]byte, 5)); !errors.Is(err, ErrLength) {
		t.Errorf("5 bytes for one number: %v", err)
	}
	if err := l.SetConfig(Config{Sparsity: 0.5, Lifespan: 1, Exact: true}); err == nil {
		t.Error("a residual became exact in mid-run")
	}
	if l.Stats().Pushes != 0 {
		t.Error("a refused gradient was counted")
	}
}

// A layer that grows while it is in use keeps what was left, and loses nothing.
func TestLayerGrows(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c := DefaultConfig
		c.Sparsity, c.Exact = 0.9, exact
		l, err := NewLayer(element.Float32, 0, c)
		if err != nil {
			t.Fatal(err)
		}
		var w Workspace
		var out sparse.Vector
		sum := 0.0
		for n := range 200 {
			l.Grow(n + 1)
			l.Grow(n) // no shorter
			g := make([]byte, 4)
			element.Float32.Put(g, 0, float64(n%7+1))
			sum += float64(n%7 + 1)
			for i, at := range []uint32{uint32(n), uint32(n / 2)} {
				if i == 1 {
					element.Float32.Put(g, 0, 0)
				}
				if err := l.CompressAt(&w, &out, []uint32{at}, g); err != nil {
					t.Fatal(err)
				}
				for i := range out.Count() {
					sum -= element.Float32.At(out.Values, i)
				}
			}
		}
		if l.Len() != 200 || l.Bytes() != 200*ResidualSize(element.Float32, exact) {
			t.Errorf("exact %v: %d numbers in %d bytes", exact, l.Len(), l.Bytes())
		}
		l.Flush(&out)
		for i := range out.Count() {
			sum -= element.Float32.At(out.Values, i)
		}
		if sum != 0 {
			t.Errorf("exact %v: %v of what was pushed is neither sent nor left", exact, sum)
		}
	}
}
