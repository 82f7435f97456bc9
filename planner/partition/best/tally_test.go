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
