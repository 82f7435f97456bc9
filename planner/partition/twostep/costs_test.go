package twostep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// TestLeastIsTheFirstOfTheLeast compares the tree, three levels of it, with a
// look at every sample, while costs fall and samples are taken away.
func TestLeastIsTheFirstOfTheLeast(t *testing.T) {
	t.Run("8 bits", leastIsTheFirst[uint8])
	t.Run("16 bits", leastIsTheFirst[uint16])
	t.Run("32 bits", leastIsTheFirst[uint32])
}

func leastIsTheFirst[T number](t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	g := require.Value(graphs.Random{Samples: 5000, Params: 300, Degree: 20, Exponent: 0.5, Seed: 7}.Build(t.Context()))(t)
	full := make([]uint32, g.Samples())
	for s := range full {
		full[s] = uint32(len(g.ParamsOf(s)))
	}
	c := newTree[T](full)
	if len(c.bound) != 3 {
		t.Fatalf("%d levels, want 3", len(c.bound))
	}
	free := make([]uint64, (g.Samples()+63)/64)
	for s := range g.Samples() {
		free[s/64] |= 1 << (s % 64)
	}
	covered := random.Perm(g.Params())
	for left := g.Samples(); left > 0; left-- {
		if len(covered) > 0 && left%10 == 0 {
			c.lower(g.SamplesOf(covered[0]), 1, free)
			covered = covered[1:]
		}
		want := -1
		for s := range g.Samples() {
			if isFree(free, uint32(s)) && (want < 0 || c.cost[s] < c.cost[want]) {
				want = s
			}
		}
		got := c.least(free, math.MaxInt64)
		if len(got.set) != 1 || int(got.set[0]) != want || got.cost != int64(c.cost[want]) {
			t.Fatalf("%d left: got %+v, want %d of cost %d", left, got, want, c.cost[want])
		}
		if below := c.least(free, got.cost-1); len(below.set) != 0 {
			t.Fatalf("found %+v where nothing costs less than %d", below, got.cost)
		}
		gone := want
		if left%3 == 0 { // another machine takes any sample
			for gone = random.IntN(g.Samples()); !isFree(free, uint32(gone)); {
				gone = (gone + 1) % g.Samples()
			}
		}
		free[gone/64] &^= 1 << (gone % 64)
	}
	if got := c.least(free, math.MaxInt64); len(got.set) != 0 {
		t.Errorf("found %+v among none", got)
	}
}

// TestCostsAreKeptInTheSmallestNumber: the largest cost decides, and what no
// number can hold is refused.
func TestCostsAreKeptInTheSmallestNumber(t *testing.T) {
	rows := make([][]uint64, 2)
	for id := range uint64(100) {
		rows[0] = append(rows[0], id)
	}
	rows[1] = []uint64{1}
	g := require.Value(graph.FromRows(rows))(t)
	for _, tc := range []struct {
		weight, last uint32 // of 99 parameters, and of one
		want         costs
	}{
		{1, 1, &tree[uint8]{}},
		{1, 28, &tree[uint8]{}},
		{1, 29, &tree[uint16]{}},
		{330, 97, &tree[uint16]{}},
		{330, 98, &tree[uint32]{}},
		{1 << 20, 1<<31 - 1 - 99<<20, &tree[uint32]{}},
		{1 << 20, 1<<31 - 99<<20, nil},
	} {
		weights := slices.Repeat([]uint32{tc.weight}, 100)
		weights[99] = tc.last
		weighted := require.Value(g.WithWeights(weights, nil))(t)
		got, err := newCosts(weighted)
		if tc.want == nil {
			if err == nil {
				t.Errorf("weights %d and %d: no error", tc.weight, tc.last)
			}
			continue
		}
		if err != nil || fmt.Sprintf("%T", got) != fmt.Sprintf("%T", tc.want) {
			t.Errorf("weights %d and %d: %T, error %v; want %T", tc.weight, tc.last, got, err, tc.want)
		}
	}
}
