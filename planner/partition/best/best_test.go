package best

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/parsa"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// text draws a graph with the skew and the topics of a text.
func text(t testing.TB, samples int) *graph.Graph {
	t.Helper()
	g := require.Value(graphs.Random{
		Samples: samples, Params: samples, Degree: 20, Exponent: 1,
		Topics: 24, TopicShare: 0.7, Seed: 5,
	}.Build(t.Context()))(t)
	return g
}

// loads returns the largest of the machines' loads and their mean by speed.
func loads(g *graph.Graph, a *partition.Assignment, o partition.Options) (most, mean float64) {
	all, speeds := 0.0, 0.0
	for i, l := range partition.Loads(g, a, o) {
		speed := 1.0
		if o.Speed != nil {
			speed = o.Speed[i]
		}
		most = max(most, l)
		all += l * speed
		speeds += speed
	}
	return most, all / speeds
}

func must(t testing.TB, g *graph.Graph, o partition.Options, work int64) *partition.Assignment {
	t.Helper()
	a := require.Value(divide(t.Context(), g, o, work, 2))(t)
	require.NoError(t, partition.Check(g, a, o))
	return a
}

// TestEveryConstraintHolds draws small graphs with options of every kind. That
// the answer meets them is checked here, not by the code under test.
func TestEveryConstraintHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "samples")
		m := rapid.IntRange(1, 60).Draw(t, "features")
		drawn := make([][]uint64, n)
		for s := range drawn {
			drawn[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(1, uint64(m)), 1, min(m, 8), rapid.ID[uint64]).Draw(t, "row")
		}
		g := require.Value(graph.FromRows(drawn))(t)
		o := drawOptions(t, &g)
		a, err := divide(context.Background(), g, o, 200_000, 2)
		if invalid := o.Validate(g); invalid != nil {
			if err == nil || err.Error() != invalid.Error() {
				t.Fatalf("got %v for options of which Validate says %v", err, invalid)
			}
			return
		}
		if err != nil && o.Theta > 0 {
			return // theta may be out of reach although Validate cannot tell
		}
		require.NoError(t, err)
		require.NoError(t, partition.Check(g, a, o))
	})
}

func drawOptions(t *rapid.T, g **graph.Graph) partition.Options {
	n, m := (*g).Samples(), (*g).Params()
	k := rapid.IntRange(1, min(n, 70)).Draw(t, "k")
	o := partition.Options{K: k, Seed: rapid.Uint64().Draw(t, "seed")}
	positive := rapid.Float64Range(0.5, 3)
	list := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
	if list("capacity") {
		o.Capacity = rapid.SliceOfN(positive, k, k).Draw(t, "capacities")
	}
	if list("speed") {
		o.Speed = rapid.SliceOfN(positive, k, k).Draw(t, "speeds")
	}
	place := rapid.Map(rapid.Int32Range(-5*int32(k), int32(k)-1), func(i int32) int32 { return max(i, -1) })
	if list("fixed samples") {
		o.FixedSamples = rapid.SliceOfN(place, n, n).Draw(t, "machines of samples")
	}
	if list("theta") {
		o.Theta = int64(rapid.IntRange(1, m).Draw(t, "theta"))
	}
	if list("weights") {
		weights := rapid.Uint32Range(1, 100)
		weighted, err := (*g).WithWeights(rapid.SliceOfN(weights, m, m).Draw(t, "params"), rapid.SliceOfN(weights, n, n).Draw(t, "samples"))
		require.NoError(t, err)
		*g = weighted
	}
	return o
}

func TestOutcomeDoesNotDependOnTheCores(t *testing.T) {
	g := text(t, 3000)
	o := partition.Options{K: 4, Seed: 9}
	want := require.Value(divide(t.Context(), g, o, 20_000_000, 1))(t)
	for _, members := range []int{2, 3, 5} {
		got := require.Value(divide(t.Context(), g, o, 20_000_000, members))(t)
		if !slices.Equal(got.Samples, want.Samples) || !slices.Equal(got.Params, want.Params) {
			t.Errorf("%d members find another assignment than 1", members)
		}
	}
}

func TestMoreWorkFindsLess(t *testing.T) {
	g := text(t, 4000)
	for _, k := range []int{4, 16} {
		o := partition.Options{K: k, Seed: 1}
		last := partition.Traffic{Max: 1 << 60}
		for _, work := range []int64{1_000_000, 10_000_000, 100_000_000} {
			tr := partition.Measure(g, must(t, g, o, work), k)
			if tr.Max >= last.Max {
				t.Errorf("k = %d: max %d with work %d, and %d with less", k, tr.Max, work, last.Max)
			}
			last = tr
		}
	}
}

func TestBetterThanGreedyAndFlat(t *testing.T) {
	g := text(t, 4000)
	for _, k := range []int{2, 4, 16} {
		o := partition.Options{K: k, Seed: 1}
		greedy := require.Value(parsa.Partition(t.Context(), g, o))(t)
		a := must(t, g, o, 60_000_000)
		got, other := partition.Measure(g, a, k), partition.Measure(g, greedy, k)
		if got.Max > other.Max || got.Total > other.Total {
			t.Errorf("k = %d: max %d, total %d; the greedy has %d and %d", k, got.Max, got.Total, other.Max, other.Total)
		}
		if bound := 2 * float64(got.Total) / float64(k); float64(got.Max) > 1.03*bound {
			t.Errorf("k = %d: max %d, bound %.0f", k, got.Max, bound)
		}
	}
}

// TestPartsThatShareNothing has an obvious optimum: no traffic at all.
func TestPartsThatShareNothing(t *testing.T) {
	const parts, size = 4, 100
	rng := rand.New(rand.NewPCG(3, 4))
	var drawn [][]uint64
	for s := range parts * size {
		row := map[uint64]bool{uint64(s % parts): true}
		for len(row) < 6 {
			row[uint64(s%parts+parts*rng.IntN(200))] = true
		}
		var ids []uint64
		for id := range row {
			ids = append(ids, id)
		}
		drawn = append(drawn, ids)
	}
	g := require.Value(graph.FromRows(drawn))(t)
	o := partition.Options{K: parts, Seed: 1}
	if tr := partition.Measure(g, must(t, g, o, 10_000_000), parts); tr.Total != 0 {
		t.Errorf("total %d, want 0", tr.Total)
	}
}

func TestLoadsFollowLinkSpeeds(t *testing.T) {
	g := text(t, 4000)
	o := partition.Options{K: 4, Seed: 1, Speed: []float64{2, 1, 1, 2}, Capacity: []float64{2, 1, 1, 2}}
	if most, mean := loads(g, must(t, g, o, 60_000_000), o); most > 1.03*mean {
		t.Errorf("the busiest machine needs %.0f, the mean is %.0f", most, mean)
	}
}

func TestThetaIsMet(t *testing.T) {
	g := text(t, 4000)
	o := partition.Options{K: 4, Seed: 1}
	free := slices.Max(partition.Used(g, must(t, g, o, 30_000_000), 4))
	mean := int64(0)
	for _, used := range partition.Used(g, must(t, g, o, 30_000_000), 4) {
		mean += used / 4
	}
	o.Theta = (free + mean) / 2
	must(t, g, o, 30_000_000) // checks theta
}

func TestThetaOutOfReach(t *testing.T) {
	g := text(t, 300)
	o := partition.Options{K: 2, Seed: 1, Theta: int64(g.Params()/2 + 1)}
	if _, err := divide(t.Context(), g, o, 1_000_000, 2); err == nil {
		t.Error("no error")
	}
}

func TestStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := partition.Options{K: 4, Budget: time.Hour, Progress: func(done float64) {
		if done > 0 {
			cancel()
		}
	}}
	if _, err := Partition(ctx, text(t, 2000), o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// fading is a context that ends when it is asked the left-th time, and knows
// who asked.
type fading struct {
	context.Context

	mu     sync.Mutex // guards the rest
	left   int
	askers map[string]int
}

func (f *fading) Err() error {
	caller := make([]uintptr, 16)
	frames := runtime.CallersFrames(caller[:runtime.Callers(2, caller)])
	f.mu.Lock()
	defer f.mu.Unlock()
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		// Type parameters and closures come after the name.
		name, _, _ := strings.Cut(frame.Function[strings.LastIndex(frame.Function, "/")+1:], "[")
		name, _, _ = strings.Cut(name, ".func")
		f.askers[name]++
	}
	if f.left--; f.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestEveryStageStopsWithItsContext ends the context at one of the moments at
// which it is asked, early ones and late: the answer is always its error. All
// that takes long for a large graph asks.
func TestEveryStageStopsWithItsContext(t *testing.T) {
	g := require.Value(graphs.Random{
		Samples: 2000, Params: 400, Degree: 10, Exponent: 1, Topics: 24, TopicShare: 0.9, Seed: 5,
	}.Build(t.Context()))(t)
	const never = 1 << 30
	ask := func(left int) (*fading, error) {
		ctx := &fading{Context: t.Context(), left: left, askers: map[string]int{}}
		_, err := divide(ctx, g, partition.Options{K: 4}, 300_000, 2)
		return ctx, err
	}
	whole := require.Value(ask(never))(t)
	for _, stage := range []string{
		"best.reduce", "best.build", "best.(*rows).degrees", "best.(*hypergraph).transpose", "best.(*hypergraph).cluster",
		"best.(*hypergraph).contract", "best.(*rows).mergeAlike", "best.(*rows).drop", "best.newState",
		"best.(*annealer", "partition.itemsOf", "partition.(*placing).greedy", "partition.(*placing).flatten",
	} {
		if whole.askers[stage] == 0 {
			t.Errorf("%s never asked whether the context has ended", stage)
		}
	}
	for left := 0; left < never-whole.left; left += 1 + left/8 {
		if _, err := ask(left); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v from a context that ended when asked the %dth time", err, left+1)
		}
	}
}

// TestSeedsAgreeWithoutStructure partitions a graph where all edges are drawn
// alike. Started from clusters, a third of the seeds end 8% above the others.
func TestSeedsAgreeWithoutStructure(t *testing.T) {
	require.Time(t)
	g := require.Value(graphs.Random{Samples: 2000, Params: 2000, Degree: 18, Seed: 1}.Build(t.Context()))(t)
	const k = 32
	for _, seed := range []uint64{5, 6} {
		a := require.Value(Partition(t.Context(), g, partition.Options{K: k, Seed: seed}))(t)
		if tr := partition.Measure(g, a, k); tr.Max > 1190 {
			t.Errorf("seed %d: max %d, other seeds end at 1,170 to 1,180", seed, tr.Max)
		}
	}
}

func TestBudgetTooShortForAnything(t *testing.T) {
	g := text(t, 2000)
	o := partition.Options{K: 4, Budget: 1}
	a := require.Value(Partition(t.Context(), g, o))(t)
	if err := partition.Check(g, a, o); err != nil {
		t.Error(err)
	}
}

// BenchmarkPartition is PSIDECAR_EDGES edges (1e7), of which some come twice and are one,
// among 16 machines. Beside the time it reports the processor's, and the memory of the
// process at most, the graph and what made it included.
func BenchmarkPartition(b *testing.B) {
	edges := 1e7
	if text := os.Getenv("PSIDECAR_EDGES"); text != "" {
		var err error
		if edges, err = strconv.ParseFloat(text, 64); err != nil || edges < 1000 || edges > 1e9 {
			b.Fatalf("PSIDECAR_EDGES=%s: want 1e3 to 1e9", text)
		}
	}
	g := require.Value(graphs.Random{
		Samples: int(edges / 50), Params: int(edges / 10), Degree: 50, Exponent: 1,
		Topics: 100, TopicShare: 0.7, Seed: 5,
	}.Build(b.Context()))(b)
	runtime.GC()
	var before, after unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
	for b.Loop() {
		a := require.Value(Partition(b.Context(), g, partition.Options{K: 16, Seed: 1}))(b)
		tr := partition.Measure(g, a, 16)
		b.ReportMetric(float64(tr.Max), "max")
		b.ReportMetric(float64(tr.Total), "total")
	}
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &after))
	spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(spent)/1e9/float64(b.N), "processor-s/op")
	b.ReportMetric(float64(after.Maxrss)*1024/float64(g.Edges()), "peak-bytes/edge")
	b.ReportMetric(float64(g.Edges())/1e6, "Medges")
}
