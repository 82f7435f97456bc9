package dataset_test

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/dataset"
)

// Rows that were alike share most of their hashed features, rows that were not
// hardly any.
func ExampleHasher() {
	h, err := dataset.NewHasher(dataset.HashOptions{Bins: 64, Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	hashed := func(from, to uint64) map[uint64]bool {
		var ids []uint64
		for id := from; id < to; id++ {
			ids = append(ids, id)
		}
		features, err := h.Append(nil, ids, nil)
		if err != nil {
			fmt.Println(err)
		}
		set := map[uint64]bool{}
		for _, f := range features {
			set[f] = true
		}
		return set
	}
	shared := func(a, b map[uint64]bool) (n int) {
		for f := range a {
			if b[f] {
				n++
			}
		}
		return n
	}
	row := hashed(0, 1000)
	fmt.Println(len(row), shared(row, hashed(50, 1000)) > 50, shared(row, hashed(5000, 6000)) < 5)
	// Output:
	// 64 true true
}
