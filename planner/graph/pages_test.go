package graph

import "testing"

func TestMakeIsZeroAndWhole(t *testing.T) {
	for _, n := range []int{0, 1, 1000, hugePage/8 - 1, 2 * hugePage / 8, 3*hugePage/8 + 5, 20 * hugePage / 8} {
		for range 3 { // memory that was used before comes back now and then
			list := MakeHuge[uint64](n)
			if len(list) != n {
				t.Fatalf("length %d, want %d", len(list), n)
			}
			for i := range list {
				if list[i] != 0 {
					t.Fatalf("%d of %d is %d, not 0", i, n, list[i])
				}
				list[i] = uint64(i) + 1
			}
			AdviseHuge(list)
			for i := range list {
				if list[i] != uint64(i)+1 {
					t.Fatalf("%d of %d is %d after the advice", i, n, list[i])
				}
			}
		}
	}
}

// BenchmarkRandomAccess adds to a table of 256 MiB in no order.
func BenchmarkRandomAccess(b *testing.B) {
	const size = 1 << 25
	for name, table := range map[string][]uint64{"small": make([]uint64, size), "huge": MakeHuge[uint64](size)} {
		b.Run(name, func(b *testing.B) {
			x := uint64(1)
			for b.Loop() {
				x = x*6364136223846793005 + 1442695040888963407
				table[x>>39]++
			}
		})
	}
}
