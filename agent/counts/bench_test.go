package counts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// spread returns n ascending keys scattered over the whole key space.
func spread(n int, seed uint64) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		seed = mix(seed + 0x9e3779b97f4a7c15)
		keys[i] = seed
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// BenchmarkAdd counts batches of keys that the table knows: all 4 million of
// them, or a sparse pick of every so manieth.
func BenchmarkAdd(b *testing.B) {
	for _, every := range []int{1, 3, 40, 1000} {
		for _, dense := range []bool{true, false} {
			name := fmt.Sprintf("every=%d/scattered", every)
			all := spread(4<<20, 1)
			if dense {
				name = fmt.Sprintf("every=%d/dense", every)
				for i := range all {
					all[i] = uint64(i)
				}
			}
			b.Run(name, func(b *testing.B) {
				table := New(DefaultOptions)
				table.Add(Batch{Keys: all, Each: Sums{Pulls: 1}})
				pick := []uint64{}
				for i := 0; i < len(all); i += every {
					pick = append(pick, all[i])
				}
				batch := Batch{Keys: pick, Each: Sums{Pushes: 1, PushedBytes: 4}}
				table.Add(batch)
				b.ReportAllocs()
				keys := 0
				for b.Loop() {
					table.Add(batch)
					keys += len(pick)
				}
				b.ReportMetric(float64(keys)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
			})
		}
	}
}

// BenchmarkAddRun counts ten million dense keys as one run: for the first time,
// again and again, and with somebody asking after each time.
func BenchmarkAddRun(b *testing.B) {
	batch := Batch{Run: Run{0, 1, 10_000_000}, Each: Sums{Pulls: 1}}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			New(DefaultOptions).Add(batch)
		}
	})
	for _, asked := range []bool{false, true} {
		b.Run(fmt.Sprintf("again/asked=%v", asked), func(b *testing.B) {
			table := New(DefaultOptions)
			b.ReportAllocs()
			for b.Loop() {
				table.Add(batch)
				if asked {
					table.Bound()
				}
			}
		})
	}
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
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	require.Missing(t, "no VmHWM in /proc/self/status")
	return 0
}

// BenchmarkLists counts what four workers of a job do in a step each: a pull, its answer and
// a push of the same keys, which are chosen anew each time, the first of 100,000
// more often than the last. Times are the process's processor time. In the first rounds,
// "new", the table comes to know the keys.
func BenchmarkLists(b *testing.B) {
	all := spread(100_000, 1)
	for _, n := range []int{6, 80, 830, 8300} {
		random := rand.New(rand.NewPCG(1, uint64(n)))
		zipf := rand.NewZipf(random, 1.1, 50, uint64(len(all)-1))
		lists, keys := make([][]uint64, max(400_000/n, 4)), 0
		for i := range lists {
			for range n {
				lists[i] = append(lists[i], all[zipf.Uint64()*99991%uint64(len(all))])
			}
			slices.Sort(lists[i])
			lists[i] = slices.Compact(lists[i])
			keys += len(lists[i])
		}
		use := func(table *Table) {
			for i, list := range lists {
				for _, each := range []Sums{{Pulls: 1}, {PulledBytes: 4}, {Pushes: 1, PushedBytes: 4}} {
					table.Add(Batch{Worker: i % 4, Keys: list, Ascending: true, Each: each})
				}
			}
			table.Size() // counts what waits
		}
		for _, known := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d keys/known=%v", n, known), func(b *testing.B) {
				table, took := New(DefaultOptions), time.Duration(0)
				use(table)
				for b.Loop() {
					if !known {
						table = New(DefaultOptions)
					}
					before := processorTime(b)
					use(table)
					took += processorTime(b) - before
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(took.Nanoseconds())/float64(3*b.N*len(lists)), "cpu-ns/list")
				b.ReportMetric(float64(took.Nanoseconds())/float64(3*b.N*keys), "cpu-ns/key")
			})
		}
	}
}

func processorTime(b testing.TB) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
