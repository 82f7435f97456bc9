package best

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// grown draws a graph twice: with part of its samples, and with all.
func grown(t testing.TB, r graphs.Random, part float64) (old, all *graph.Graph) {
	t.Helper()
	all, err := r.Build(t.Context())
	require.NoError(t, err)
	r.Samples = int(part * float64(r.Samples))
	old = require.Value(r.Build(t.Context()))(t)
	return old, all
}

// fromOld returns an assignment of old as one of most of all.
func fromOld(old, all *graph.Graph, a *partition.Assignment) *partition.Assignment {
	from := &partition.Assignment{Samples: slices.Repeat([]int32{-1}, all.Samples()), Params: slices.Repeat([]int32{-1}, all.Params())}
	copy(from.Samples, a.Samples)
	for p, at := 0, 0; p < old.Params(); p++ {
		for all.Feature(at) != old.Feature(p) {
			at++
		}
		from.Params[at] = a.Params[p]
	}
	return from
}

func movedSamples(from, to []int32) (moved, known int) {
	for s, i := range from {
		if i >= 0 {
			known++
			if i != to[s] {
				moved++
			}
		}
	}
	return moved, known
}

func TestGrownDataMovesLittle(t *testing.T) {
	old, all := grown(t, graphs.Random{
		Samples: 6_300, Params: 12_000, Degree: 20, Exponent: 1, Topics: 30, TopicShare: 0.7, Seed: 5,
	}, 20./21)
	o := partition.Options{K: 8, Seed: 3}
	const work = 60_000_000
	before := must(t, old, o, work)
	began := time.Now()
	fresh := must(t, all, o, work)
	freshTook := time.Since(began)
	o.From, o.MoveAtMost = fromOld(old, all, before), 0.1
	began = time.Now()
	renewed := must(t, all, o, work)
	t.Logf("fresh %v, renewed %v", freshTook, time.Since(began))
	moved, known := movedSamples(o.From.Samples, renewed.Samples)
	if known != old.Samples() || moved > known/10 {
		t.Errorf("%d of %d old samples move, more than a tenth", moved, known)
	}
	movedParams, knownParams := movedSamples(o.From.Params, renewed.Params)
	freshMax, renewedMax := partition.Measure(all, fresh, o.K).Max, partition.Measure(all, renewed, o.K).Max
	t.Logf("max %d fresh, %d renewed; %d of %d samples and %d of %d parameters moved", freshMax, renewedMax, moved, known, movedParams, knownParams)
	if float64(renewedMax) > 1.02*float64(freshMax) {
		t.Errorf("the busiest machine moves %d, of a fresh run %d", renewedMax, freshMax)
	}
	if movedParams > knownParams/4 {
		t.Errorf("%d of %d old parameters change owners", movedParams, knownParams)
	}
}

func TestNothingMayMove(t *testing.T) {
	g := text(t, 2000)
	o := partition.Options{K: 4, Seed: 3}
	before := must(t, g, o, 20_000_000)
	o.From = before
	if moved, _ := movedSamples(before.Samples, must(t, g, o, 20_000_000).Samples); moved > 0 {
		t.Errorf("%d samples move where none may", moved)
	}
	o.FixedSamples = slices.Repeat([]int32{-1}, g.Samples())
	o.FixedSamples[7] = (before.Samples[7] + 1) % 4
	if moved, _ := movedSamples(before.Samples, must(t, g, o, 20_000_000).Samples); moved < 1 || moved > 2 {
		t.Errorf("%d samples move for one that is fixed elsewhere", moved)
	}
}

func TestRenewedAlikeOnAllCores(t *testing.T) {
	old, all := grown(t, graphs.Random{Samples: 2100, Params: 3000, Degree: 15, Exponent: 1, Topics: 20, TopicShare: 0.7, Seed: 5}, 20./21)
	o := partition.Options{K: 4, Seed: 3}
	o.From, o.MoveAtMost = fromOld(old, all, must(t, old, o, 10_000_000)), 0.1
	var want *partition.Assignment
	for members := 1; members <= 3; members++ {
		got := require.Value(divide(t.Context(), all, o, 10_000_000, members))(t)
		if want == nil {
			want = got
		}
		if !slices.Equal(got.Samples, want.Samples) || !slices.Equal(got.Params, want.Params) {
			t.Errorf("%d members find another assignment than 1", members)
		}
	}
}

// grownRows reads a data set twice: without its last 21st, and whole.
func grownRows(t testing.TB, name string) (old, all *graph.Graph) {
	t.Helper()
	var rows [][]uint64
	err := dataset.ReadFile(t.Context(), require.Dataset(t, name), dataset.Options{}, func(r *dataset.Rows) error {
		for i := range r.Len() {
			ids, _ := r.Features(i)
			rows = append(rows, slices.Clone(ids))
		}
		return nil
	})
	require.NoError(t, err)
	all = require.Value(graph.FromRows(rows))(t)
	old = require.Value(graph.FromRows(rows[:len(rows)*20/21]))(t)
	return old, all
}

// TestGrownDataSets is TestGrownDataMovesLittle with real data.
func TestGrownDataSets(t *testing.T) {
	require.Time(t)
	old, all := grownRows(t, "rcv1-excerpt.libsvm.xz")
	o := partition.Options{K: 8, Seed: 3}
	const work = 200_000_000
	before, fresh := must(t, old, o, work), must(t, all, o, work)
	o.From, o.MoveAtMost = fromOld(old, all, before), 0.1
	renewed := must(t, all, o, work)
	moved, known := movedSamples(o.From.Samples, renewed.Samples)
	freshMax, renewedMax := partition.Measure(all, fresh, o.K).Max, partition.Measure(all, renewed, o.K).Max
	t.Logf("max %d fresh, %d renewed; %d of %d samples moved", freshMax, renewedMax, moved, known)
	if moved > known/10 || float64(renewedMax) > 1.02*float64(freshMax) {
		t.Errorf("%d of %d samples move, and the busiest machine moves %d, of a fresh run %d", moved, known, renewedMax, freshMax)
	}
}

// BenchmarkGrown is data that grew by 5%: what part of the old samples moves, and of a
// fresh partition's maximum, processor time and time what one from the old one takes.
func BenchmarkGrown(b *testing.B) {
	for _, name := range []string{"rcv1-excerpt", "criteo-80k", "9.5 million edges"} {
		b.Run(name, func(b *testing.B) {
			var old, all *graph.Graph
			if name == "9.5 million edges" {
				old, all = grown(b, graphs.Random{Samples: 200_000, Params: 1_000_000, Degree: 50, Exponent: 1, Topics: 100, TopicShare: 0.7, Seed: 5}, 20./21)
			} else {
				old, all = grownRows(b, name+".libsvm.xz")
			}
			run := func(g *graph.Graph, o partition.Options) (a *partition.Assignment, cpu, took float64) {
				began, before := time.Now(), processorSeconds(b)
				a = require.Value(Partition(b.Context(), g, o))(b)
				return a, processorSeconds(b) - before, time.Since(began).Seconds()
			}
			for b.Loop() {
				o := partition.Options{K: 8, Seed: 3}
				before, _, _ := run(old, o)
				fresh, freshCPU, freshTook := run(all, o)
				o.From, o.MoveAtMost = fromOld(old, all, before), 0.1
				renewed, cpu, took := run(all, o)
				moved, known := movedSamples(o.From.Samples, renewed.Samples)
				b.ReportMetric(100*float64(moved)/float64(known), "%moved")
				b.ReportMetric(float64(partition.Measure(all, renewed, o.K).Max)/float64(partition.Measure(all, fresh, o.K).Max), "max/fresh")
				b.ReportMetric(freshCPU, "fresh-cpu-s")
				b.ReportMetric(cpu/freshCPU, "cpu/fresh")
				b.ReportMetric(took/freshTook, "time/fresh")
			}
		})
	}
}

func processorSeconds(b *testing.B) float64 {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) * 1e-9
}
