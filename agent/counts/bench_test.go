package counts

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/test/require"
)

// spread returns n ascending keys scattered over the whole key space.
func spread(n int, seed uint64) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		seed = splitmix.Next(seed)
		keys[i] = seed
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// TestHundredMillionKeys asks a table of default size for 100 million
// distinct scattered keys. The whole process must stay under 512 MiB.
func TestHundredMillionKeys(t *testing.T) {
	require.Time(t)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(MemoryLimit))
	table := New(DefaultOptions)
	const batches, size = 100, 1_000_000
	sent := uint64(0)
	for i := range uint64(batches) {
		keys := spread(size, i<<32)
		sent += uint64(len(keys))
		table.Add(Batch{Worker: int(i % 8), Keys: keys, Each: Sums{Pulls: 1}})
	}
	s := table.Size()
	if s.Total[Pulls] != sent {
		t.Errorf("%d accesses counted, %d made", s.Total[Pulls], sent)
	}
	blocks, sum := table.Blocks(0, 1<<64-1, 1000), uint64(0)
	for _, b := range blocks {
		for _, w := range b.Workers {
			sum += w[Pulls]
		}
	}
	if sum != sent || len(blocks) < 500 {
		t.Errorf("%d blocks with %d accesses, want about 1000 with %d", len(blocks), sum, sent)
	}
	if d := float64(s.Keys) / float64(sent); d < 0.97 || d > 1.03 {
		t.Errorf("%d distinct keys estimated of %d", s.Keys, sent)
	}
	peak := peakMemory(t)
	t.Logf("%d keys in %d MiB (process at most %d MiB), %d counted one by one, the rest at most %d too high", s.Keys, s.MemoryBytes>>20, peak>>20, s.ExactKeys, s.SketchBound)
	if peak > 512<<20 {
		t.Errorf("the process took %d MiB, more than 512", peak>>20)
	}
	runtime.KeepAlive(table)
}

// peakMemory returns the largest resident size that the process had.
func peakMemory(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		require.Missing(t, "reading the peak memory: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib := require.Value(strconv.Atoi(strings.Fields(rest)[0]))(t)
			return kib << 10
		}
	}
	require.Missing(t, "no VmHWM in /proc/self/status")
	return 0
}

func processorTime(b testing.TB) time.Duration {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
