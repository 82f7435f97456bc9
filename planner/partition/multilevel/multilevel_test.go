package multilevel

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/partitiontest"
	"github.com/psidecar/psidecar/test/require"
)

// thousands checks 20 times as many random cases as rapid does by default.
func thousands(t *testing.T, check func(*rapid.T)) {
	for range 20 {
		rapid.Check(t, check)
	}
}

// randomLevel draws a level of a graph, coarsened up to twice, and a part.
func randomLevel(t *rapid.T, g *graph.Graph, o partition.Options) (*level, []int32) {
	l := require.Value(newLevel(g, o))(t)
	random := rand.New(rand.NewPCG(o.Seed, 1))
	for range rapid.IntRange(0, 2).Draw(t, "coarsenings") {
		if next := coarsen(l, 1, o.K, random); next != nil {
			l = next
		}
	}
	part := rapid.SliceOfN(rapid.Int32Range(0, int32(o.K-1)), l.vertices(), l.vertices()).Draw(t, "part")
	return l, part
}

func TestGainsEqualRecomputed(t *testing.T) {
	thousands(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 15, 15)
		o := partitiontest.Options(t, g, 6)
		l, part := randomLevel(t, g, o)
		moved := newGains(l, o.K, slices.Clone(part))
		if l.vertices() == 0 {
			return
		}
		for range rapid.IntRange(1, 20).Draw(t, "moves") {
			v := rapid.Int32Range(0, int32(l.vertices()-1)).Draw(t, "v")
			j := rapid.Int32Range(0, int32(o.K-1)).Draw(t, "j")
			if j == moved.part[v] {
				continue
			}
			before := make([]int32, 0, len(moved.penalty))
			for u := range int32(l.vertices()) {
				for i := range int32(o.K) {
					before = append(before, moved.of(u, i))
				}
			}
			cost, gain := moved.cost(), moved.of(v, j)
			moved.move(v, j)
			if got := moved.cost(); got != cost-int64(gain) {
				t.Fatalf("the move promised %d and saved %d", gain, cost-got)
			}
			fresh := newGains(l, o.K, slices.Clone(moved.part))
			if !slices.Equal(moved.count, fresh.count) || !slices.Equal(moved.spread, fresh.spread) ||
				!slices.Equal(moved.benefit, fresh.benefit) || !slices.Equal(moved.penalty, fresh.penalty) ||
				!slices.Equal(moved.traffic, fresh.traffic) {
				t.Fatalf("after moving %d to %d:\nkept       %+v\nrecomputed %+v", v, j, moved, fresh)
			}
			for u := range int32(l.vertices()) {
				for i := range int32(o.K) {
					if moved.of(u, i) != before[int(u)*o.K+int(i)] && !slices.Contains(moved.touched, u) {
						t.Fatalf("the gain of %d changed, and it is not among the touched %v", u, moved.touched)
					}
				}
			}
		}
	})
}

// TestCostIsTraffic checks that the hypergraph's objective is what a step
// moves, at the finest level and, projected, at coarser ones.
func TestCostIsTraffic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 15, 15)
		o := partitiontest.Options(t, g, 6)
		o.Speed = nil // the objective counts what is moved, not how long it takes
		fine := require.Value(newLevel(g, o))(t)
		l := fine
		random := rand.New(rand.NewPCG(o.Seed, 1))
		var levels []*level
		for next := coarsen(l, 1, o.K, random); next != nil; next = coarsen(l, 1, o.K, random) {
			levels = append(levels, next)
			l = next
		}
		part := rapid.SliceOfN(rapid.Int32Range(0, int32(o.K-1)), l.vertices(), l.vertices()).Draw(t, "part")
		coarse := newGains(l, o.K, slices.Clone(part)).cost()
		for _, l := range slices.Backward(levels) {
			part = l.project(part)
		}
		a := &partition.Assignment{Samples: part[:g.Samples()], Params: part[g.Samples():]}
		var bytes float64
		for _, load := range partition.Loads(g, a, o) {
			bytes += load
		}
		if fine := newGains(fine, o.K, part).cost(); coarse != fine || float64(2*fine) != bytes {
			t.Fatalf("cost %d coarse, %d fine; the machines move %g, both ends counted", coarse, fine, bytes)
		}
	})
}

// literalPass is one pass of the refinement with everything recomputed from
// the definitions after each move.
func literalPass(l *level, o partition.Options, part []int32, limit []int64, patience int) []int32 {
	part = slices.Clone(part)
	cost := func(part []int32) (sum int64) {
		for e := range int32(l.netCount()) {
			on := map[int32]bool{}
			for _, v := range l.pinsOf(e) {
				on[part[v]] = true
			}
			sum += int64(l.netCost[e]) * int64(len(on)-1)
		}
		return sum
	}
	moved := func(v, j int32) []int32 {
		other := slices.Clone(part)
		other[v] = j
		return other
	}
	feasible := func(v, j int32) bool {
		after := moved(v, j)
		load, used := int64(0), int64(0)
		traffic := func(part []int32) []float64 {
			t := make([]float64, o.K)
			for e := range int32(l.netCount()) {
				on := map[int32]bool{}
				for _, u := range l.pinsOf(e) {
					on[part[u]] = true
				}
				for i := range on {
					if len(on) > 1 {
						t[i] += float64(l.netCost[e])
					}
				}
			}
			return t
		}
		for u := range int32(l.vertices()) {
			if after[u] == j {
				load += l.weight[u]
			}
		}
		for e := range int32(l.netCount()) {
			if slices.ContainsFunc(l.samplesOf(e), func(s int32) bool { return after[s] == j }) {
				used += int64(l.netCost[e])
			}
		}
		was, will := traffic(part), traffic(after)
		var sum float64
		for _, t := range was {
			sum += t
		}
		crowded := will[j] > math.Floor((1+crowd)*sum/float64(o.K)) && will[j] > was[j]
		return !l.isSample(v) || load <= limit[j] && (o.Theta == 0 || used <= o.Theta) && !crowded
	}
	type pair struct{ v, j int32 }
	left, done := map[pair]bool{}, map[int32]bool{}
	start := cost(part)
	best, bestPart, since := start, slices.Clone(part), 0
	for {
		next, most := pair{-1, -1}, int64(0)
		now := cost(part)
		for v := range int32(l.vertices()) {
			for j := range int32(o.K) {
				if done[v] || l.fixed[v] >= 0 || left[pair{v, j}] || j == part[v] {
					continue
				}
				gain := now - cost(moved(v, j))
				if (l.isSample(v) || gain > 0) && (next.v < 0 || gain > most) {
					next, most = pair{v, j}, gain
				}
			}
		}
		if next.v < 0 || since > patience {
			return bestPart
		}
		if !feasible(next.v, next.j) {
			left[next] = true
			continue
		}
		part[next.v] = next.j
		done[next.v] = true
		since++
		if c := cost(part); c < best {
			best, bestPart, since = c, slices.Clone(part), 0
		}
	}
}

func TestPassIsLiteral(t *testing.T) {
	thousands(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 8, 8)
		o := partitiontest.Options(t, g, 6)
		l, part := randomLevel(t, g, o)
		limit := relax(l, o.SampleLimits(g))
		r := newRefinement(l, o, slices.Clone(part), limit)
		require.Value(r.pass(context.Background()))(t)
		if want := literalPass(l, o, part, limit, r.patience()); !slices.Equal(r.part, want) {
			t.Fatalf("from %v: got %v, want %v", part, r.part, want)
		}
		// What was undone left the gains as if it had never been.
		if fresh := newGains(l, o.K, slices.Clone(r.part)); !slices.Equal(r.benefit, fresh.benefit) || !slices.Equal(r.penalty, fresh.penalty) {
			t.Fatal("gains differ from recomputed ones after the pass")
		}
		if fresh := newRefinement(l, o, slices.Clone(r.part), limit); !slices.Equal(r.load, fresh.load) || !slices.Equal(r.used, fresh.used) {
			t.Fatalf("loads %v and use %v differ from recomputed %v and %v", r.load, r.used, fresh.load, fresh.used)
		}
	})
}

// TestCoarsen checks that only vertices of one side with a common neighbour
// are merged, that fixed ones are not, and that nothing is lost.
func TestCoarsen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 20, 15)
		o := partitiontest.Options(t, g, 6)
		l := require.Value(newLevel(g, o))(t)
		next := coarsen(l, 1, o.K, rand.New(rand.NewPCG(o.Seed, 2)))
		if next == nil {
			return
		}
		members := make([][]int32, next.vertices())
		weight := make([]int64, next.vertices())
		for v, u := range next.finer {
			members[u] = append(members[u], int32(v))
			weight[u] += l.weight[v]
		}
		if !slices.Equal(weight, next.weight) {
			t.Fatalf("weights %v, want %v", next.weight, weight)
		}
		near := func(v int32) map[int32]bool {
			out := map[int32]bool{}
			for _, e := range l.netsOf(v) {
				if l.isSample(v) {
					out[e] = true
					continue
				}
				for _, s := range l.samplesOf(e) {
					out[s] = true
				}
			}
			return out
		}
		for u, m := range members {
			if len(m) < 1 || len(m) > 2 {
				t.Fatalf("vertex %d is made of %v", u, m)
			}
			if len(m) == 1 {
				continue
			}
			if l.isSample(m[0]) != l.isSample(m[1]) || l.isSample(m[0]) != next.isSample(int32(u)) || l.fixed[m[0]] >= 0 || l.fixed[m[1]] >= 0 {
				t.Fatalf("merged %v", m)
			}
			a, b := near(m[0]), near(m[1])
			common := false
			for x := range a {
				common = common || b[x]
			}
			if !common {
				t.Fatalf("merged %v, which have no common neighbour", m)
			}
		}
	})
}

func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := partitiontest.Graph(t, 300, 80)
		o := partitiontest.Options(t, g, 6)
		a, err := MBP(context.Background(), g, o)
		if err != nil {
			if o.Theta > 0 || o.FixedSamples != nil || g.SamplesWeight() != int64(g.Samples()) {
				return // a local search need not find what the options ask
			}
			t.Fatal(err)
		}
		require.NoError(t, partition.Check(g, a, o))
		again, err := MBP(context.Background(), g, o)
		if err != nil || !slices.Equal(a.Samples, again.Samples) || !slices.Equal(a.Params, again.Params) {
			t.Fatalf("two runs differ, %v", err)
		}
	})
}

func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(20)
		plain := map[int32]int32{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			v := rapid.Int32Range(0, 19).Draw(t, "v")
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				q.remove(v)
				delete(plain, v)
			case 1:
				want, found := int32(-1), false
				for u, gain := range plain {
					if !found || gain > plain[want] || gain == plain[want] && u < want {
						want, found = u, true
					}
				}
				if got, _, ok := q.pop(); ok != found || ok && got != want {
					t.Fatalf("popped %d, %v, want %d, %v", got, ok, want, found)
				}
				delete(plain, want)
			default:
				gain := rapid.Int32Range(-5, 5).Draw(t, "gain")
				q.set(v, gain)
				plain[v] = gain
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	g := require.Value(graph.FromRows([][]uint64{{1, 2}, {2, 3}, {3, 4}, {4, 9}}))(t)
	if _, err := MBP(t.Context(), g, partition.Options{K: 5}); !errors.Is(err, partition.ErrInfeasible) {
		t.Errorf("k above n: got %v", err)
	}
	if _, err := MBP(t.Context(), g, partition.Options{K: 2, Theta: 3, FixedSamples: []int32{0, 1, 0, 1}}); err == nil || !strings.Contains(err.Error(), "theta = 3") {
		t.Errorf("theta out of reach: got %v", err)
	}
	heavy := require.Value(g.WithWeights([]uint32{4e9, 1, 1, 1, 1}, nil))(t)
	if _, err := MBP(t.Context(), heavy, partition.Options{K: 2}); err == nil || !strings.Contains(err.Error(), "larger units") {
		t.Errorf("heavy weights: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := MBP(ctx, g, partition.Options{K: 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: got %v", err)
	}
}
