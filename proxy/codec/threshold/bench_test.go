package threshold

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/codectest"
	"github.com/psidecar/psidecar/test/require"
)

// opposites are two gradients of the given size in MiB, of which one is the
// other's negative. Pushed in turns, with a threshold that stays, each push
// sends what the first did: what was left cancels out.
func opposites(kind element.Kind, mib int) [2][]byte {
	rng := rand.New(rand.NewPCG(1, 1))
	g := [2][]byte{make([]byte, mib<<20), make([]byte, mib<<20)}
	for i := range (mib << 20) / kind.Size() {
		v := rng.NormFloat64()
		kind.Put(g[0], i, v)
		kind.Put(g[1], i, -v)
	}
	return g
}

// unlike are two float32 gradients that have nothing in common.
func unlike(mib int) [2][]byte {
	g := opposites(element.Float32, mib)
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range len(g[1]) / 4 {
		element.Float32.Put(g[1], i, rng.NormFloat64())
	}
	return g
}

// BenchmarkEncode is a push from gradient to wire form, with error feedback and
// a threshold that is not renewed: 999 of 1000 pushes with the default
// lifespan.
func BenchmarkEncode(b *testing.B) {
	for _, kind := range allKinds {
		for _, mib := range codectest.MiB {
			b.Run(fmt.Sprintf("%v/%dMiB/0.99", kind, mib), func(b *testing.B) {
				benchmarkEncode(b, opposites(kind, mib), kind, Config{Sparsity: 0.99, Lifespan: 1 << 30})
			})
		}
	}
	for _, mib := range codectest.MiB {
		b.Run(fmt.Sprintf("float32/%dMiB/0.95", mib), func(b *testing.B) {
			benchmarkEncode(b, opposites(element.Float32, mib), element.Float32, Config{Sparsity: 0.95, Lifespan: 1 << 30})
		})
	}
}

// BenchmarkEncodeRenewing is a push that renews the threshold: with a lifespan
// of 1 each does.
func BenchmarkEncodeRenewing(b *testing.B) {
	for _, mib := range codectest.MiB {
		b.Run(fmt.Sprintf("%dMiB/0.99", mib), func(b *testing.B) {
			benchmarkEncode(b, unlike(mib), element.Float32, Config{Sparsity: 0.99, Lifespan: 1})
		})
	}
}

func benchmarkEncode(b *testing.B, gradients [2][]byte, kind element.Kind, c Config) {
	l := require.Value(NewLayer(kind, len(gradients[0])/kind.Size(), c))(b)
	var w Workspace
	var out sparse.Vector
	var wire []byte
	codectest.BesideCopy(b, gradients[:], func(g []byte) {
		require.NoError(b, l.Compress(&w, &out, g))
		wire = out.Append(wire[:0])
	})
	b.ReportMetric(float64(len(gradients[0]))/float64(len(wire)), "times-fewer")
}

// BenchmarkDecode is the way from the wire form to the whole gradient.
func BenchmarkDecode(b *testing.B) {
	for _, kind := range allKinds {
		for _, mib := range codectest.MiB {
			b.Run(fmt.Sprintf("%v/%dMiB/0.99", kind, mib), func(b *testing.B) { benchmarkDecode(b, kind, mib, 0.99) })
		}
	}
	for _, mib := range codectest.MiB {
		b.Run(fmt.Sprintf("float32/%dMiB/0.95", mib), func(b *testing.B) { benchmarkDecode(b, element.Float32, mib, 0.95) })
	}
}

func benchmarkDecode(b *testing.B, kind element.Kind, mib int, sparsity float64) {
	gradients := opposites(kind, mib)
	l := require.Value(NewLayer(kind, len(gradients[0])/kind.Size(), Config{Sparsity: sparsity, Lifespan: 1 << 30}))(b)
	var w Workspace
	var out, got sparse.Vector
	require.NoError(b, l.Compress(&w, &out, gradients[0]))
	wire := out.Append(nil)
	whole := make([]byte, len(gradients[0]))
	codectest.BesideCopy(b, gradients[:], func([]byte) {
		if _, err := got.Decode(wire, out.N); err != nil {
			b.Fatal(err)
		}
		got.Expand(whole)
	})
}
