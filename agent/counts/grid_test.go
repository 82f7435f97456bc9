package counts

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/page"
)

func TestGridAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := New(DefaultOptions)
		var grids []*page.Grid
		want := plain{}
		for range rapid.IntRange(1, 4).Draw(t, "grids") {
			g := &page.Grid{Firsts: table.Firsts(rapid.IntRange(1, 40).Draw(t, "blocks"))}
			grids = append(grids, g)
			for range rapid.IntRange(1, 5).Draw(t, "batches") {
				b := drawBatch(t)
				b.AddTo(g)
				table.Add(b)
				want.add(b)
			}
		}
		firsts := page.CommonEdges(grids)
		got := map[[2]int]Sums{}
		for _, g := range grids {
			for w, row := range g.Regroup(firsts) {
				for i, s := range row {
					sum := got[[2]int{w, i}]
					sum.Add(s)
					got[[2]int{w, i}] = sum
				}
			}
		}
		for w := range 4 {
			for i, first := range firsts {
				last := uint64(math.MaxUint64)
				if i+1 < len(firsts) {
					last = firsts[i+1] - 1
				}
				if truth := want.sums(w, first, last); got[[2]int{w, i}] != truth {
					t.Fatalf("worker %d block %d: %v, want %v", w, i, got[[2]int{w, i}], truth)
				}
			}
		}
	})
}

func TestFirstsAreEven(t *testing.T) {
	for _, tc := range []struct {
		name string
		keys []uint64
	}{
		{"dense", func() (k []uint64) {
			for i := range uint64(100_000) {
				k = append(k, i)
			}
			return k
		}()},
		{"scattered", spread(100_000, 5)},
		{"few", []uint64{1, 2, 3, 5, math.MaxUint64}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := New(DefaultOptions)
			table.Add(Batch{Keys: tc.keys, Each: Sums{Pulls: 1}})
			firsts := table.Firsts(256)
			if firsts[0] != 0 || !slices.IsSorted(firsts) || len(firsts) > 256 {
				t.Fatalf("%d blocks from %d", len(firsts), firsts[0])
			}
			g := page.Grid{Firsts: firsts}
			(&Batch{Keys: tc.keys, Each: Sums{Pulls: 1}}).AddTo(&g)
			for i, s := range g.Rows[0] {
				if limit := uint64(len(tc.keys)/64 + 1); s[Pulls] > limit {
					t.Errorf("block %d from %d holds %d of %d keys", i, firsts[i], s[Pulls], len(tc.keys))
				}
			}
		})
	}
}
