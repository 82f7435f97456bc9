package best

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TestTallyCounts compares the bit-sliced counters with plain ones, for rows
// long enough to fill many planes.
func TestTallyCounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, length := range []int{0, 1, 7, 8, 9, 63, 255, 256, 257, 5000, 70000} {
		checkTally[uint8](t, rng, length)
		checkTally[uint32](t, rng, length)
		checkTally[uint64](t, rng, length)
	}
}

func checkTally[T word](t *testing.T, rng *rand.Rand, length int) {
	t.Helper()
	cells := make([]cell[T], 1000)
	for e := range cells {
		touch := T(rng.Uint64() | rng.Uint64())
		cells[e] = cell[T]{touch: touch, single: touch & T(rng.Uint64())}
	}
	nets := make([]uint32, length)
	for i := range nets {
		nets[i] = uint32(rng.IntN(len(cells)))
	}
	own := rng.IntN(width[T]())
	want := make([]float32, width[T]())
	for _, e := range nets {
		for b := range want {
			alone := b == own && cells[e].single>>b&1 == 1
			if cells[e].touch>>b&1 == 1 && !alone {
				want[b]++
			}
		}
	}
	var p planes[T]
	tally(&p, cells, nets, 1<<own)
	got := make([]float32, width[T]())
	p.addTo(got, bits.Len(uint(length)), 1)
	for b := range want {
		if got[b] != want[b] {
			t.Fatalf("%d blocks, %d nets, block %d: got %v, want %v", width[T](), length, b, got[b], want[b])
		}
	}
}

func BenchmarkTally(b *testing.B) {
	for _, nets := range []int{10, 75, 450} {
		b.Run("8 blocks", func(b *testing.B) { benchmarkTally[uint8](b, nets) })
		b.Run("64 blocks", func(b *testing.B) { benchmarkTally[uint64](b, nets) })
	}
}

// benchmarkTally prices a vertex of the given number of nets in all blocks.
func benchmarkTally[T word](b *testing.B, length int) {
	rng := rand.New(rand.NewPCG(1, 2))
	cells := make([]cell[T], 20_000)
	for e := range cells {
		cells[e].touch = T(rng.Uint64())
	}
	nets := make([]uint32, length)
	for i := range nets {
		nets[i] = uint32(rng.IntN(len(cells)))
	}
	var p planes[T]
	out := make([]float32, width[T]())
	b.ReportAllocs()
	for b.Loop() {
		tally(&p, cells, nets, 1)
		p.addTo(out, bits.Len(uint(length)), 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(length), "ns/net")
}
