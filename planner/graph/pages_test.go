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
