package dynamic

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawItems(t *rapid.T, n, k int) *Items {
	it := &Items{}
	for range n {
		home := rapid.Int32Range(0, int32(k-1)).Draw(t, "home")
		it.Home, it.Owner = append(it.Home, home), append(it.Owner, home)
		it.Size = append(it.Size, rapid.Float32Range(1, 20).Draw(t, "size"))
	}
	return it
}

func drawSet(t *rapid.T, n int) []int32 {
	var set []int32
	for i := range int32(n) {
		if rapid.Bool().Draw(t, "in") {
			set = append(set, i)
		}
	}
	return set
}

// Alg. 3 line by line: every (d, p) of D x P, neighbours by a full scan.
func literalEdges(lru []Batch, batches []Batch, params, r int, c float64) []edge {
	var all []edge
	for i, d := range batches { // line 2
		past := slices.Clone(lru)
		for j, b := range batches {
			if j != i {
				past = append(past, b)
			}
		}
		for p := range int32(params) {
			var near []int
			for len(near) < min(r, len(past)) { // line 3
				best := -1
				for i := range past {
					if !slices.Contains(near, i) && (best < 0 || euclid(d.Pulled, past[i].Pulled, params) <= euclid(d.Pulled, past[best].Pulled, params)) {
						best = i
					}
				}
				near = append(near, best)
			}
			sq, s := 0.0, 0.0
			for _, l := range near {
				sl := 1 / euclid(d.Pulled, past[l].Pulled, params) // line 4
				s += sl
				if slices.Contains(past[l].Updated, p) { // line 5
					sq += sl
				}
			}
			if f := sq / s; f > c { // lines 6 and 7
				all = append(all, edge{p, d.Machine, f})
			}
		}
	}
	return all
}

func euclid(a, b []int32, params int) float64 {
	sum := 0.0
	for p := range int32(params) {
		if slices.Contains(a, p) != slices.Contains(b, p) {
			sum++
		}
	}
	if sum == 0 {
		return 0.5
	}
	return math.Sqrt(sum)
}

func TestCorrelationAgainstLiteral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const params, k = 8, 3
		c := correlation{keep: 5, neighbors: rapid.IntRange(1, 4).Draw(t, "r"), cutoff: rapid.SampledFrom([]float64{0, 0.25, 0.5}).Draw(t, "c")}
		draw := func() Batch {
			pulled := drawSet(t, params)
			return Batch{rapid.Int32Range(0, k-1).Draw(t, "machine"), pulled, pulled[:len(pulled)/2]}
		}
		for range rapid.IntRange(1, 12).Draw(t, "past") {
			c.rememberBatch(draw())
		}
		if len(c.lru) > c.keep {
			t.Fatalf("%d batches are remembered", len(c.lru))
		}
		next := []Batch{draw(), draw()}
		got, want := c.edges(next), literalEdges(c.lru, next, params, c.neighbors, c.cutoff)
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for _, w := range want {
			if !slices.ContainsFunc(got, func(g edge) bool {
				return g.item == w.item && g.machine == w.machine && math.Abs(g.weight-w.weight) < 1e-9
			}) {
				t.Fatalf("%v lacks %v", got, w)
			}
		}
	})
}

// Of sparse batches that follow each other, some neighbours predict more keys of the next batch than
// the newest batch alone has.
func TestCorrelationPredictsTheNextBatch(t *testing.T) {
	for _, c := range []struct{ keys, size int }{{1000, 100}, {4000, 400}, {20_000, 2000}} {
		mean := func(r int) float64 {
			rng := rand.New(rand.NewPCG(1, 1))
			d := NewDPPA(Options{Machines: 2, DPPA: DPPAOptions{Neighbors: r, Batches: 64}})
			it := &Items{Home: make([]int32, c.keys), Owner: make([]int32, c.keys), Size: slices.Repeat([]float32{1}, c.keys)}
			predicted, n := 0, 0
			for step := range 25 {
				seen := map[int32]bool{}
				for len(seen) < c.size { // ids are popular as 1 / (1 + id)
					seen[int32(math.Exp(rng.Float64()*math.Log(float64(c.keys))))-1] = true
				}
				b := slices.Sorted(maps.Keys(seen))
				for _, p := range b {
					if step >= 10 && slices.Contains(d.touched, p) {
						predicted++
					}
				}
				if step >= 10 {
					n++
				}
				if _, err := d.Plan(it, &Epoch{Steps: 1, Batches: []Batch{{0, b, b}}}); err != nil {
					t.Fatal(err)
				}
			}
			return float64(predicted) / float64(n)
		}
		one, four := mean(1), mean(4)
		t.Logf("%d of %d keys: %.0f predicted with r = 1, %.0f with 2, %.0f with 4, %.0f with 8", c.size, c.keys, one, mean(2), four, mean(8))
		if four < 1.2*one {
			t.Errorf("%d of %d keys: %.0f predicted with r = 4, %.0f with r = 1", c.size, c.keys, four, one)
		}
	}
}

// A batch with the keys of an old one makes that the newest.
func TestCorrelationForgetsTheLeastRecent(t *testing.T) {
	c := correlation{keep: 2}
	for _, p := range []int32{1, 2, 1, 3} {
		c.rememberBatch(Batch{Pulled: []int32{p}})
	}
	if len(c.lru) != 2 || c.lru[0].Pulled[0] != 1 || c.lru[1].Pulled[0] != 3 {
		t.Errorf("remembered are %v", c.lru)
	}
}

// Alg. 4 line by line, all sums recomputed each time.
func literalBalance(it *Items, volume []float64, k int) []int32 {
	owner := slices.Clone(it.Owner)
	f := func(j int32) float64 {
		sum := 0.0
		for p, o := range owner {
			if o == j {
				sum += volume[p]
			}
		}
		return sum
	}
	for {
		most, least := int32(0), int32(0)
		for j := range int32(k) { // lines 2 and 3
			if f(j) > f(most) {
				most = j
			}
			if f(j) < f(least) {
				least = j
			}
		}
		best := -1
		for p, o := range owner { // line 4
			if o == most && (best < 0 || math.Abs(f(most)-volume[p]-f(least)-volume[p]) < math.Abs(f(most)-volume[best]-f(least)-volume[best])) {
				best = p
			}
		}
		if best < 0 || k == 1 {
			return owner
		}
		largest := max(f(most)-volume[best], f(least)+volume[best])
		for j := range int32(k) {
			if j != most && j != least {
				largest = max(largest, f(j))
			}
		}
		if delta := f(most) - largest; delta <= 0 || delta < float64(it.Size[best]) { // lines 5 to 7
			return owner
		}
		owner[best] = least // line 8
	}
}

// Whole numbers add up alike in any order, so the moves are the same ones.
func TestBalanceAgainstLiteral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, k := rapid.IntRange(1, 30).Draw(t, "items"), rapid.IntRange(1, 5).Draw(t, "machines")
		it := drawItems(t, n, k)
		volume, loads, items := make([]float64, n), make([]float64, k), make([]int32, n)
		for p := range volume {
			volume[p] = float64(rapid.IntRange(1, 60).Draw(t, "volume"))
			loads[it.Owner[p]] += volume[p]
			items[p] = int32(p)
		}
		want := literalBalance(it, volume, k)
		got := slices.Clone(it.Owner)
		for _, m := range balance(it, items, volume, loads) {
			got[m.Item] = m.To
		}
		if !slices.Equal(got, want) {
			t.Fatalf("owners %v, want %v (before %v, volumes %v)", got, want, it.Owner, volume)
		}
	})
}

// The trigger holds small imbalances back, and a large one is mended.
func TestDPPATrigger(t *testing.T) {
	it := &Items{Owner: []int32{0, 0, 0, 0, 1, 1, 1}, Home: make([]int32, 7), Size: []float32{1, 1, 1, 1, 1, 1, 1}}
	used := func(items ...int32) *Epoch {
		return &Epoch{Steps: 1, Batches: []Batch{{0, items, items}, {1, items, items}}}
	}
	d := NewDPPA(Options{Machines: 2, DPPA: DPPAOptions{Imbalance: 0.3, Neighbors: 1}})
	if moves, err := d.Plan(it, used(0, 1, 2, 3, 4, 5, 6)); err != nil || len(moves) != 0 {
		t.Errorf("a load of 8 and one of 6 move %v, %v", moves, err)
	}
	moves, err := d.Plan(it, used(0, 1, 2, 3))
	if err != nil || len(moves) != 2 || moves[0].To != 1 {
		t.Errorf("a load of 8 and one of 0 move %v, %v", moves, err)
	}
	if _, err := d.Plan(it, used(3, 2)); err == nil {
		t.Error("a batch that does not ascend is taken")
	}
}
