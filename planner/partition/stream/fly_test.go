package stream_test

import (
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition/stream"
)

// BenchmarkMadeOnTheFly divides data that is nowhere: its rows are drawn again in each
// pass. PSIDECAR_STREAM_EDGES is how many edges there are, about (default 5e6), and
// PSIDECAR_STREAM_MEMORY how many bytes the tables may take.
func BenchmarkMadeOnTheFly(b *testing.B) {
	edges, memory := number(b, "PSIDECAR_STREAM_EDGES", 5e6), number(b, "PSIDECAR_STREAM_MEMORY", 64<<20)
	const k, degree = 16, 50
	r := graph.Random{Samples: int(edges / degree), Params: int(edges / 10), Degree: degree, Exponent: 1, Topics: 100, TopicShare: 0.7, Seed: 5}
	source := func(ctx context.Context, _ int, each func([]uint64) (int, error)) error {
		return r.Rows(ctx, func(ids []uint64) error { _, err := each(ids); return err })
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(memory) + 192<<20)) // as psidecar partition --stream does
	for b.Loop() {
		o := stream.Options{K: k, Memory: int64(memory), Passes: stream.DefaultPasses, Scratch: b.TempDir()}
		result, err := stream.Partition(b.Context(), source, o, func(uint64, int) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		if result.Memory > int64(memory) {
			b.Errorf("the tables took %d bytes, %.0f were allowed", result.Memory, memory)
		}
		b.ReportMetric(float64(result.Edges)/1e6, "Medges")
		b.ReportMetric(float64(result.Traffic.Max), "max")
		b.ReportMetric(result.RandomMax, "random-max")
		b.ReportMetric(float64(result.Followed)/float64(result.Edges), "followed")
		b.ReportMetric(float64(result.Spilled)/1e6, "spilled-MB")
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(usage.Maxrss)/1024, "peak-MiB")
}

func number(b *testing.B, name string, otherwise float64) float64 {
	b.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < 1 {
		b.Fatalf("%s=%q: want a number, such as 1e9", name, s)
	}
	return n
}
