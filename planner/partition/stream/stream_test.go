package stream_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/parsa"
	"github.com/psidecar/psidecar/planner/partition/stream"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/require"
)

// partitioned streams a graph that is in memory as if it were not, and checks
// what the result says with what is true of the assignment.
func partitioned(t rapid.TB, g *graph.Graph, o stream.Options) (*partition.Assignment, *stream.Result) {
	t.Helper()
	a := &partition.Assignment{Samples: make([]int32, g.Samples())}
	source := func(_ context.Context, pass int, each func([]uint64) (int, error)) error {
		var ids []uint64
		for s := range g.Samples() {
			ids = ids[:0]
			for _, p := range g.ParamsOf(s) {
				ids = append(ids, g.Feature(int(p)))
			}
			machine, err := each(ids)
			if err != nil {
				return err
			}
			a.Samples[s] = int32(machine)
		}
		return nil
	}
	r, err := stream.Partition(context.Background(), source, o, func(id uint64, owner int) error {
		if want := g.Feature(len(a.Params)); id != want {
			t.Fatalf("parameter %d has id %d, want %d", len(a.Params), id, want)
		}
		a.Params = append(a.Params, int32(owner))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, r
}

// verify compares what the result says with what is true of the assignment.
func verify(t rapid.TB, g *graph.Graph, k int, a *partition.Assignment, r *stream.Result) {
	t.Helper()
	if err := partition.Check(g, a, partition.Options{K: k}); err != nil {
		t.Fatal(err)
	}
	want := partition.Measure(g, a, k)
	if !slices.Equal(r.Traffic.PerMachine, want.PerMachine) || r.Traffic.Max != want.Max || r.Traffic.Total != want.Total {
		t.Errorf("traffic %+v, want %+v", r.Traffic, want)
	}
	if used := partition.Used(g, a, k); !slices.Equal(r.Used, used) {
		t.Errorf("used %v, want %v", r.Used, used)
	}
	if r.Samples != int64(g.Samples()) || r.Params != int64(g.Params()) || r.Edges != g.Edges() {
		t.Errorf("%d samples, %d parameters, %d edges, want %d, %d, %d", r.Samples, r.Params, r.Edges, g.Samples(), g.Params(), g.Edges())
	}
	data := make([]int64, k)
	for _, machine := range a.Samples {
		data[machine]++
	}
	if !slices.Equal(r.Data, data) {
		t.Errorf("data %v, want %v", r.Data, data)
	}
}

func TestInvariants(t *testing.T) {
	scratch := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "samples")
		rows := make([][]uint64, n)
		for s := range rows {
			rows[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(0, 40), 0, 8, rapid.ID[uint64]).Draw(t, "row")
		}
		rows[0] = append(rows[0][:0:0], 0, 1<<63)
		g, err := graph.FromRows(rows)
		if err != nil {
			t.Fatal(err)
		}
		k := rapid.IntRange(1, n).Draw(t, "k")
		o := stream.Options{K: k, Memory: stream.LeastMemory(k), Passes: rapid.IntRange(1, 5).Draw(t, "passes"), Scratch: scratch}
		a, r := partitioned(t, g, o)
		verify(t, g, k, a, r)
		if r.Followed != r.Edges || r.RandomShare != 1 {
			t.Errorf("%d of %d edges followed, baseline on %g of the parameters: everything fits", r.Followed, r.Edges, r.RandomShare)
		}
	})
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}

// drawn is a graph with topics whose features do not fit in little memory.
func drawn(t testing.TB, samples, params int) *graph.Graph {
	t.Helper()
	g, err := graph.Random{Samples: samples, Params: params, Degree: 20, Exponent: 0.9, Topics: 40, TopicShare: 0.7, Seed: 3}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestMemory counts every byte that is allocated, whether or not it is freed
// again: memory that does not grow with the data.
func TestMemory(t *testing.T) {
	const k = 16
	g := drawn(t, 30_000, 150_000)
	for _, memory := range []int64{stream.LeastMemory(k), 2 << 20, 8 << 20, 64 << 20} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a, r := partitioned(t, g, stream.Options{K: k, Memory: memory, Passes: 3, Scratch: t.TempDir()})
		runtime.ReadMemStats(&after)
		verify(t, g, k, a, r)
		result := int64(g.Samples()+5*g.Params()) * 4 // the assignment, which grows as this test appends to it
		allocated := int64(after.TotalAlloc-before.TotalAlloc) - result
		t.Logf("%d bytes allowed: %d taken, %d allocated; %.1f%% of the edges followed, %d bytes spilled, max %d, random %.0f on %.1f%% of the parameters",
			memory, r.Memory, allocated, 100*float64(r.Followed)/float64(r.Edges), r.Spilled, r.Traffic.Max, r.RandomMax, 100*r.RandomShare)
		if r.Memory > memory || allocated > memory+64<<10 {
			t.Errorf("%d bytes allowed, %d taken and %d allocated", memory, r.Memory, allocated)
		}
		if memory <= 2<<20 && (r.Followed == r.Edges || r.Spilled == 0 || r.RandomShare == 1) {
			t.Error("nothing had to be forgotten, spilled or sampled: the test tests nothing")
		}
	}
}

// TestBaseline compares the streamed baseline with the one in memory.
func TestBaseline(t *testing.T) {
	g := drawn(t, 40_000, 150_000)
	want, err := prerun.RandomBaseline(t.Context(), g, partition.Options{K: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		memory int64
		off    float64
	}{{128 << 20, 0.01}, {8 << 20, 0.05}} {
		_, r := partitioned(t, g, stream.Options{K: 8, Memory: tc.memory, Passes: 1, Scratch: t.TempDir()})
		t.Logf("on %.1f%% of the parameters: max %.0f, total %.0f; in memory %.0f, %.0f", 100*r.RandomShare, r.RandomMax, r.RandomTotal, want.Max, want.Total)
		if (r.RandomShare == 1) != (tc.memory == 128<<20) {
			t.Errorf("the baseline took %g of the parameters", r.RandomShare)
		}
		if far(r.RandomMax, want.Max) > tc.off || far(r.RandomTotal, want.Total) > tc.off {
			t.Errorf("more than %g off", tc.off)
		}
	}
}

func far(a, b float64) float64 { return max(a, b)/min(a, b) - 1 }

// TestQuality states how good streaming is: against random and the
// greedy in memory that it resembles.
func TestQuality(t *testing.T) {
	for _, tc := range []struct {
		name  string
		least float64 // percent over random, in memory enough
	}{{"rcv1-excerpt", 85}, {"criteo-80k", 150}} {
		t.Run(tc.name, func(t *testing.T) {
			g, err := graph.FromFile(t.Context(), require.Dataset(t, tc.name+".libsvm.xz"), dataset.Options{})
			if err != nil {
				t.Fatal(err)
			}
			o := partition.Options{K: 8, Seed: 1}
			greedy, err := parsa.Partition(t.Context(), g, o)
			if err != nil {
				t.Fatal(err)
			}
			inMemory := partition.Measure(g, greedy, o.K)
			random, err := prerun.RandomBaseline(t.Context(), g, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("random: max %.0f; greedy in memory: max %d, total %d", random.Max, inMemory.Max, inMemory.Total)
			for _, memory := range []int64{1 << 20, 16 << 20} {
				for _, passes := range []int{1, 4} {
					if passes != stream.DefaultPasses && memory != 16<<20 {
						continue
					}
					a, r := partitioned(t, g, stream.Options{K: o.K, Memory: memory, Passes: passes, Scratch: t.TempDir()})
					verify(t, g, o.K, a, r)
					over := (random.Max - float64(r.Traffic.Max)) / float64(r.Traffic.Max) * 100
					t.Logf("%2d MiB, %d passes: max %d, total %d, max/bound %.3f, %.0f%% over random, %.0f%% of edges followed",
						memory>>20, passes, r.Traffic.Max, r.Traffic.Total, float64(r.Traffic.Max)*4/float64(r.Traffic.Total), over, 100*float64(r.Followed)/float64(r.Edges))
					if memory == 16<<20 && passes == stream.DefaultPasses && (over < tc.least || r.Traffic.Max > inMemory.Max*105/100) {
						t.Errorf("has been at least %.0f%% over random and at most 5%% above the greedy in memory", tc.least)
					}
				}
			}
		})
	}
}

func TestTopicsAreFound(t *testing.T) {
	var rows [][]uint64
	for s := range 400 {
		topic := uint64(s % 4 * 100)
		rows = append(rows, []uint64{topic + uint64(s)%7, topic + uint64(s)%5 + 10, topic + uint64(s)%11 + 20})
	}
	g, err := graph.FromRows(rows)
	if err != nil {
		t.Fatal(err)
	}
	if _, r := partitioned(t, g, stream.Options{K: 4, Memory: 1 << 20, Passes: 4, Scratch: t.TempDir()}); r.Traffic.Total != 0 {
		t.Errorf("four separate topics on four machines: %+v", r.Traffic)
	}
}

func TestErrors(t *testing.T) {
	broken := errors.New("broken")
	rows := func(n ...int) stream.Source {
		return func(ctx context.Context, pass int, each func([]uint64) (int, error)) error {
			for s := range n[min(pass, len(n)-1)] {
				if _, err := each([]uint64{uint64(s % 5)}); err != nil {
					return err
				}
			}
			return ctx.Err()
		}
	}
	fine := stream.Options{K: 2, Memory: 1 << 20, Passes: 2, Scratch: t.TempDir()}
	with := func(change func(o *stream.Options)) stream.Options {
		o := fine
		change(&o)
		return o
	}
	for _, tc := range []struct {
		name   string
		source stream.Source
		o      stream.Options
		want   string
	}{
		{"no machines", rows(9), with(func(o *stream.Options) { o.K = 0 }), "0 machines"},
		{"too many machines", rows(9), with(func(o *stream.Options) { o.K = 1 << 16 }), "65536 machines"},
		{"no passes", rows(9), with(func(o *stream.Options) { o.Passes = 0 }), "0 passes"},
		{"too little memory", rows(9), with(func(o *stream.Options) { o.Memory = 1000 }), fmt.Sprintf("1000 bytes of memory are too little for 2 machines: at least %d", stream.LeastMemory(2))},
		{"no scratch folder", rows(9), with(func(o *stream.Options) { o.Scratch = "/nonexistent" }), "/nonexistent"},
		{"more machines than samples", rows(1), fine, "2 machines for 1 samples"},
		{"more samples later", rows(9, 9, 10), fine, "the data changed"},
		{"fewer samples later", rows(9, 8), fine, "the data changed"},
		{"a source that fails", func(context.Context, int, func([]uint64) (int, error)) error { return broken }, fine, "broken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := stream.Partition(t.Context(), tc.source, tc.o, func(uint64, int) error { return nil })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := stream.Partition(ctx, rows(9), fine, func(uint64, int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if left, err := os.ReadDir(fine.Scratch); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}

// BenchmarkPartition measures edges a second of all passes together, reading
// excepted.
func BenchmarkPartition(b *testing.B) {
	for _, k := range []int{8, 64} {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			g := drawn(b, 200_000, 500_000)
			for b.Loop() {
				partitioned(b, g, stream.Options{K: k, Memory: 64 << 20, Passes: 4, Scratch: b.TempDir()})
			}
			b.ReportMetric(float64(g.Edges())*float64(b.N)/b.Elapsed().Seconds(), "edges/s")
		})
	}
}
