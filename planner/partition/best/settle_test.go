package best

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// TestSettlingKeepsLimits: whatever a batch proposes, a block that is within
// its limit stays there, and one that is not does not grow.
func TestSettlingKeepsLimits(t *testing.T) {
	const k = 4
	rapid.Check(t, func(t *rapid.T) {
		h, block := drawHypergraph(t, k)
		s := counted[uint8](t, h, k, block)
		l := limits{size: make([]int64, k), share: []float64{0.25, 0.25, 0.25, 0.25}}
		for b := range l.size {
			l.size[b] = s.size[b] + int64(rapid.IntRange(-2, 4).Draw(t, "room"))
		}
		tm := newTeam(2)
		defer tm.close()
		a := newAnnealer(s, l, newTariff(k), tm, 1)
		for range 5 {
			before := slices.Clone(s.size)
			temp := rapid.SampledFrom([]float64{0.1, 1, 100}).Draw(t, "temperature")
			require.NoError(t, a.sweep(context.Background(), temp))
			for b := range l.size {
				if s.size[b] > max(before[b], l.size[b]) {
					t.Fatalf("block %d: size %d, before %d, limit %d", b, s.size[b], before[b], l.size[b])
				}
			}
		}
		if want := slowCosts(h, k, s.block); !equalCosts(s.cost, want) {
			t.Fatalf("after sweeps costs %+v, counted anew %+v", s.cost, want)
		}
	})
}

// TestNeighboursChangePlaces: two full blocks, two vertices that want to swap.
func TestNeighboursChangePlaces(t *testing.T) {
	r := rows{start: []int{0, 1, 2, 3, 4}, pins: []uint32{0, 1, 1, 0}, netWeight: []int32{1, 1}}
	h := require.Value(build(t.Context(), r, []int32{1, 1, 1, 1}, make([]int64, 4), nil))(t)
	s := counted[uint8](t, h, 2, []int32{0, 0, 1, 1})
	tm := newTeam(1)
	defer tm.close()
	a := newAnnealer(s, limits{size: []int64{2, 2}, share: []float64{0.5, 0.5}}, newTariff(2), tm, 1)
	a.members[0].proposals = []proposal{{v: 1, to: 1}, {v: 3, to: 0}}
	a.settleAll()
	a.applyMoves()
	if want := []int32{0, 1, 1, 0}; !slices.Equal(s.block, want) || s.cost.total != 0 {
		t.Errorf("blocks %v with total %d, want %v with 0", s.block, s.cost.total, want)
	}
}
