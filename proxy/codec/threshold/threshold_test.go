package threshold

import (
	"bytes"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
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
		}
		l := require.Value(NewLayer(kind, n, c))(t)
		paper := newLiteral(kind, n, c)
		var w Workspace
		var out sparse.Vector
		for push := range rapid.IntRange(1, 8).Draw(t, "pushes") {
			g := gradients(t, n)
			require.NoError(t, l.Compress(&w, &out, bytesOf(kind, g)))
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
		l := require.Value(NewLayer(element.Float32, n, Config{Sparsity: sparsity, Lifespan: 1}))(t)
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
			require.NoError(t, l.Compress(&w, &out, b))
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

// The numbers at some positions are a layer of their own where no other was
// pushed.
func TestCompressAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		n := rapid.IntRange(1, 60).Draw(t, "n")
		c := Config{Sparsity: 0.7, Lifespan: 2}
		at := make([]uint32, n)
		for i := range at {
			at[i] = uint32(i*7 + 3)
		}
		part := require.Value(NewLayer(kind, 7*n+3, c))(t)
		alone := require.Value(NewLayer(kind, n, c))(t)
		var w Workspace
		var got, want sparse.Vector
		for range 5 {
			g := bytesOf(kind, gradients(t, n))
			require.NoError(t, part.CompressAt(&w, &got, at, g))
			require.NoError(t, alone.Compress(&w, &want, g))
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

// Positions in line are compressed in place, others gathered; both send and keep the same,
// and neither's memory is taken for the other's.
func TestPositionsInLine(t *testing.T) {
	const n = 1000
	for _, kind := range []element.Kind{element.Float32, element.Float64, element.BFloat16} {
		t.Run(kind.String(), func(t *testing.T) {
			c := DefaultConfig
			c.Sparsity = 0.9
			line := require.Value(NewLayer(kind, n, c))(t)
			mixed := require.Value(NewLayer(kind, n, c))(t)
			r := rand.New(rand.NewPCG(9, 9))
			w := new(Workspace)
			for range 50 {
				first, size := r.IntN(n), 0
				size = 1 + r.IntN(n-first)
				at, backwards := make([]uint32, size), make([]uint32, size)
				g, backG := make([]byte, size*kind.Size()), make([]byte, size*kind.Size())
				for i := range size {
					v := r.NormFloat64()
					at[i], backwards[size-1-i] = uint32(first+i), uint32(first+i)
					kind.Put(g, i, v)
					kind.Put(backG, size-1-i, v)
				}
				var a, b sparse.Vector
				require.NoError(t, line.CompressAt(w, &a, at, g))
				require.NoError(t, mixed.CompressAt(new(Workspace), &b, backwards, backG))
				sent, back := make([]byte, len(g)), make([]byte, len(g))
				a.Expand(sent)
				b.Expand(back)
				for i := range size {
					if x, y := kind.At(sent, i), kind.At(back, size-1-i); x != y {
						t.Fatalf("position %d of %d: %v is sent in line, %v gathered", i, size, x, y)
					}
				}
				// What is gathered next must not be written where the line was.
				some := []uint32{uint32(n - 1), 0, 7}
				three := make([]byte, 3*kind.Size())
				for i := range some {
					kind.Put(three, i, r.NormFloat64())
				}
				require.NoError(t, line.CompressAt(w, &a, some, three))
				require.NoError(t, mixed.CompressAt(new(Workspace), &b, some, three))
				if !bytes.Equal(line.AppendResidual(nil), mixed.AppendResidual(nil)) {
					t.Fatal("the residuals differ")
				}
			}
		})
	}
}
