package agent

import (
	"runtime"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
)

// What counting takes is known however it is put off: of keys that are counted when
// somebody asks, as of those that are counted when their record comes.
func TestTimerKnowsLateWork(t *testing.T) {
	runtime.LockOSThread() // whose time is compared with the timer's
	defer runtime.UnlockOSThread()
	var timed timer
	options := counts.DefaultOptions
	options.Timed = timed.timed
	table := counts.New(options)
	random := uint64(1)
	var keys []uint64
	for range 1 << 16 {
		random = random*6364136223846793005 + 1442695040888963407
		keys = append(keys, random)
	}
	slices.Sort(keys)
	table.Add(counts.Batch{Keys: keys, Each: counts.Sums{counts.Pulls: 1}}) // known, with many leaves
	if n := timed.keys.Load(); n != 0 {
		t.Fatalf("%d ns of counting that was not put off", n)
	}
	start := threadNanos()
	sparse := make([]uint64, 100)
	for from := range 100 {
		for i := range sparse {
			sparse[i] = keys[from+600*i]
		}
		table.Add(counts.Batch{Keys: sparse, Each: counts.Sums{counts.Pulls: 1}})
	}
	if n := timed.keys.Load(); n != 0 {
		t.Fatalf("%d ns of late counting before anybody asked", n)
	}
	table.Size()
	all, late := threadNanos()-start, timed.keys.Load()
	if late <= 0 || late > all {
		t.Fatalf("%d ns of late counting, of %d ns in all", late, all)
	}
	if timed.late.Load() != late {
		t.Fatalf("%d ns late, want %d", timed.late.Load(), late)
	}
	// On the reading thread it falls to late alone, and not to the records' estimate as well.
	for range 2000 {
		table.Add(counts.Batch{Keys: sparse, Each: counts.Sums{counts.Pulls: 1}})
		timed.handle(&bpf.Record{Kind: bpf.KindKeys}, func(*bpf.Record) { table.Size() })
	}
	late = timed.late.Load()
	if estimate := timed.keys.Load() - late; estimate > late/2 {
		t.Fatalf("records that counted what was late, %d ns, and did nothing else are estimated to take %d ns", late, estimate)
	}
}
