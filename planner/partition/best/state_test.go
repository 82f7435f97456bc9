package best

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// counted is newState, which only fails with its context.
func counted[T word](t require.TB, h *hypergraph, k int, block []int32) *state[T] {
	s := require.Value(newState[T](context.Background(), h, k, block))(t)
	return s
}

// drawHypergraph draws a small hypergraph with nets of several weights, and an assignment of its vertices to k blocks.
func drawHypergraph(t *rapid.T, k int) (*hypergraph, []int32) {
	n := rapid.SampledFrom([]int{1, 2, 5, 10, 30, fewPins, fewPins + 5}).Draw(t, "vertices")
	m := rapid.IntRange(1, 40).Draw(t, "nets")
	r := rows{start: []int{0}, netWeight: make([]int32, m)}
	for e := range m {
		r.netWeight[e] = rapid.SampledFrom([]int32{1, 1, 1, 2, 5}).Draw(t, "weight")
	}
	weight, block := make([]int32, n), make([]int32, n)
	for v := range n {
		pins := rapid.SliceOfNDistinct(rapid.Uint32Range(0, uint32(m-1)), 0, m, rapid.ID[uint32]).Draw(t, "pins")
		r.pins = append(r.pins, pins...)
		r.start = append(r.start, len(r.pins))
		weight[v] = int32(rapid.IntRange(1, 3).Draw(t, "vertex weight"))
		block[v] = int32(rapid.IntRange(0, k-1).Draw(t, "block"))
	}
	h := require.Value(build(context.Background(), r, weight, make([]int64, n), nil))(t)
	return h, block
}

// slowCosts counts from scratch, the obvious way.
func slowCosts(h *hypergraph, k int, block []int32) costs {
	c := newCosts(k)
	weights := h.netWeights()
	for v, b := range block {
		c.used[b] += h.lone[v]
	}
	for e := range h.nets {
		touched := map[int32]bool{}
		for v, b := range block {
			if slices.Contains(h.row(v), uint32(e)) {
				touched[b] = true
			}
		}
		for b := range touched {
			c.used[b] += int64(weights[e])
		}
		if len(touched) > 1 {
			for b := range touched {
				c.touch[b] += int64(weights[e])
			}
			c.total += int64(len(touched)-1) * int64(weights[e])
		}
	}
	return c
}

func equalCosts(a, b costs) bool {
	return a.total == b.total && slices.Equal(a.touch, b.touch) && slices.Equal(a.used, b.used)
}

func checkMoves[T word](t *rapid.T, k int) {
	h, block := drawHypergraph(t, k)
	s := counted[T](t, h, k, slices.Clone(block))
	for range rapid.IntRange(0, 20).Draw(t, "moves") {
		v := rapid.IntRange(0, h.vertices()-1).Draw(t, "vertex")
		to := rapid.IntRange(0, k-1).Draw(t, "to")
		if int(s.block[v]) == to {
			continue
		}
		var p planes[T]
		hits := make([]float32, k)
		s.hits(v, &p, hits)
		before, from := s.cost.total, s.block[v]
		s.relocate(v, to)
		if want := int64(hits[from] - hits[to]); s.cost.total-before != want {
			t.Fatalf("vertex %d from %d to %d: hits promise %d, the move cost %d", v, from, to, want, s.cost.total-before)
		}
	}
	if want := slowCosts(h, k, s.block); !equalCosts(s.cost, want) {
		t.Fatalf("costs %+v, counted anew %+v", s.cost, want)
	}
	fresh := counted[T](t, h, k, s.block)
	if !equalCosts(fresh.cost, s.cost) || !reflect.DeepEqual(fresh.count, s.count) || !slices.Equal(fresh.size, s.size) {
		t.Fatalf("after moves %+v, counted anew %+v", s, fresh)
	}
	for w := range s.cells {
		if !slices.Equal(s.cells[w], fresh.cells[w]) {
			t.Fatalf("cells %v, counted anew %v", s.cells[w], fresh.cells[w])
		}
	}
}

func TestMovesCostWhatCountingAnewSays(t *testing.T) {
	for _, tc := range []struct {
		name  string
		k     int
		check func(*rapid.T, int)
	}{
		{"1 block", 1, checkMoves[uint8]},
		{"2 blocks", 2, checkMoves[uint8]},
		{"8 blocks", 8, checkMoves[uint8]},
		{"9 blocks", 9, checkMoves[uint16]},
		{"32 blocks", 32, checkMoves[uint32]},
		{"64 blocks", 64, checkMoves[uint64]},
		{"20 blocks in 3 words", 20, checkMoves[uint8]},
		{"130 blocks in 3 words", 130, checkMoves[uint64]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { tc.check(t, tc.k) })
		})
	}
}
