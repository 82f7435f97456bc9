package partition

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSort(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, mask := range []uint64{0, 0xff, 0xff00ff, ^uint64(0)} {
		keys, items := make([]uint64, 1000), make([]uint32, 1000)
		for i := range keys {
			keys[i], items[i] = rng.Uint64()&mask, uint32(i)
		}
		before := slices.Clone(keys)
		want := slices.Clone(items)
		slices.SortStableFunc(want, func(a, b uint32) int {
			switch {
			case before[a] < before[b]:
				return -1
			case before[a] > before[b]:
				return 1
			}
			return 0
		})
		RadixSort(keys, items)
		if !slices.Equal(items, want) || !slices.IsSorted(keys) {
			t.Errorf("mask %#x: not in order", mask)
		}
	}
}
