package vector

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// The sizes of the buffers that loops are measured with, in MiB.
var sizes = []int{4, 64}

func gradient(kind element.Kind, mib int) []byte {
	rng := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, mib<<20)
	for i := range len(b) / kind.Size() {
		kind.Put(b, i, rng.NormFloat64())
	}
	return b
}

// BenchmarkCopy is the peer of the others: the same buffer, copied.
func BenchmarkCopy(b *testing.B) {
	for _, mib := range sizes {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			src, dst := gradient(element.Float32, mib), make([]byte, mib<<20)
			b.SetBytes(int64(mib << 20))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

func benchmarkAdd[R Float](b *testing.B, kind element.Kind, adder func([]R, []byte, R, []uint64, []uint32, int) []uint32) {
	for _, mib := range sizes {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			g := gradient(kind, mib)
			n := len(g) / kind.Size()
			e, mask, at := make([]R, n), make([]uint64, (n+63)/64), make([]uint32, 0, n+8)
			b.SetBytes(int64(len(g)))
			for b.Loop() {
				adder(e, g, R(math.Inf(1)), mask, at, 0)
			}
		})
	}
}

func BenchmarkAddFloat32(b *testing.B)     { benchmarkAdd(b, element.Float32, AddFloat32) }
func BenchmarkAddFloat16(b *testing.B)     { benchmarkAdd(b, element.Float16, AddFloat16) }
func BenchmarkAddBFloat16(b *testing.B)    { benchmarkAdd(b, element.BFloat16, AddBFloat16) }
func BenchmarkAddFloat64(b *testing.B)     { benchmarkAdd(b, element.Float64, AddFloat64) }
func BenchmarkAddFloat32To64(b *testing.B) { benchmarkAdd(b, element.Float32, AddFloat32To64) }

func BenchmarkSelectFloat32(b *testing.B) {
	for _, mib := range sizes {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			g := gradient(element.Float32, mib)
			e := make([]float32, len(g)/4)
			for i := range e {
				e[i] = float32(element.Float32.At(g, i))
			}
			var s Selector
			b.SetBytes(int64(len(g)))
			for b.Loop() {
				s.SelectFloat32(e, 0.99)
			}
		})
	}
}
