package twostep

import (
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
)

// TestLeastIsTheFirstOfTheLeast compares the tree, three levels of it, with a
// look at every sample, while costs fall and samples are taken away.
func TestLeastIsTheFirstOfTheLeast(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	g, err := graph.Random{Samples: 5000, Params: 300, Degree: 20, Exponent: 0.5, Seed: 7}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCosts(g)
	if err != nil {
		t.Fatal(err)
	}
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
		got := c.least(free, none)
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
	if got := c.least(free, none); len(got.set) != 0 {
		t.Errorf("found %+v among none", got)
	}
}
