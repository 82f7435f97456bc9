package route

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A table says of every key what a plain list of owners says, after any changes
// of ranges and single keys.
func TestTableAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const keys, servers = 600, 3
		base := rapid.SampledFrom([]uint64{0, 6148914691236517205 - 300, 1<<64 - 1 - keys}).Draw(t, "base")
		table := NewTable(servers)
		var owner [keys]int32
		for i := range owner {
			owner[i] = plan.HomeOf(base+uint64(i), servers)
		}
		for range rapid.IntRange(1, 20).Draw(t, "tables") {
			var changes []plan.Range
			for range rapid.IntRange(1, 5).Draw(t, "changes") {
				first := rapid.IntRange(0, keys-1).Draw(t, "first")
				last := min(keys-1, first+rapid.SampledFrom([]int{0, 1, 10, 100, 500}).Draw(t, "more"))
				to := rapid.Int32Range(plan.Home, servers-1).Draw(t, "owner")
				changes = append(changes, plan.Range{Keys: plan.Keys{First: base + uint64(first), Last: base + uint64(last)}, Owner: to})
				for i := first; i <= last; i++ {
					if owner[i] = to; to == plan.Home {
						owner[i] = plan.HomeOf(base+uint64(i), servers)
					}
				}
			}
			table = table.With(changes)
		}
		var frame pslite.Keys
		for i := range owner {
			frame = pslite.AppendKeys(frame, []uint64{base + uint64(i)})
		}
		if got := table.AppendOwners(nil, frame); !slices.Equal(got, owner[:]) {
			t.Fatalf("owners are %v, want %v", got, owner)
		}
		copied := NewTable(servers).With(slices.Collect(table.All))
		for i, want := range owner {
			key := base + uint64(i)
			if got := table.Owner(key); got != want {
				t.Fatalf("key %d has owner %d, want %d", key, got, want)
			}
			if got := copied.Owner(key); got != want {
				t.Fatalf("key %d has owner %d in the copy, want %d", key, got, want)
			}
		}
		from, n := rapid.IntRange(0, keys-1).Draw(t, "from"), rapid.IntRange(1, 50).Draw(t, "n")
		var asked []uint64
		displaced := false
		for i := from; i < min(keys, from+n); i++ {
			asked = append(asked, base+uint64(i))
			displaced = displaced || owner[i] != plan.HomeOf(base+uint64(i), servers)
		}
		if displaced && !table.Touches(pslite.AppendKeys(nil, asked)) {
			t.Fatalf("no displaced key is seen in %d from %d on", n, from)
		}
	})
}

// Keys that came home again leave an empty table.
func TestTableEmpties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	table := NewTable(4)
	var keys []plan.Range
	for range 5000 {
		keys = append(keys, plan.Range{Keys: plan.One(rng.Uint64()), Owner: rng.Int32N(4)})
	}
	table = table.With(keys)
	for i := range keys {
		keys[i].Owner = plan.Home
	}
	for part := range slices.Chunk(keys, 100) {
		table = table.With(part)
	}
	if !table.Empty() || table.Touches(pslite.AppendKeys(nil, []uint64{keys[0].First})) {
		n, r := table.Displaced()
		t.Errorf("%d keys and %d ranges are left", n, r)
	}
}

// million returns a table of a million displaced keys, and the keys.
func million() (*Table, []uint64) {
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	keys, changes := make([]uint64, n), make([]plan.Range, n)
	for i := range keys {
		keys[i] = rng.Uint64()
		changes[i] = plan.Range{Keys: plan.One(keys[i]), Owner: (plan.HomeOf(keys[i], 8) + 1) % 8}
	}
	return NewTable(8).With(changes), keys
}

func BenchmarkOwner(b *testing.B) {
	var before, after runtime.MemStats
	keys := []uint64(nil)
	_, keys = million()
	runtime.GC()
	runtime.ReadMemStats(&before)
	table, _ := million()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.Run("displaced", func(b *testing.B) { askFor(b, table, keys) })
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range keys {
		keys[i] = rng.Uint64()
	}
	b.Run("home", func(b *testing.B) { askFor(b, table, keys) })
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	})
	runtime.KeepAlive(table)
}

func askFor(b *testing.B, table *Table, keys []uint64) {
	b.ReportAllocs()
	sum, i := int32(0), 0
	owners := make([]int32, 0, 1024)
	frame := pslite.AppendKeys(nil, keys)
	for b.Loop() {
		owners = table.AppendOwners(owners[:0], frame[8*i:8*(i+1024)])
		sum += owners[0]
		if i += 1024; i == len(keys) {
			i = 0
		}
	}
	b.ReportMetric(1024*float64(b.N)/b.Elapsed().Seconds()/1e6, "M/s")
	if sum == 42 {
		b.Log(sum)
	}
}

// A message of 10,000 keys, none displaced, where few or many others are.
func BenchmarkTouches(b *testing.B) {
	many, _ := million()
	rng := rand.New(rand.NewPCG(4, 4))
	var few []plan.Range
	for range 1000 {
		k := rng.Uint64()
		few = append(few, plan.Range{Keys: plan.One(k), Owner: (plan.HomeOf(k, 8) + 1) % 8})
	}
	asked := make([]uint64, 10_000)
	for i := range asked {
		asked[i] = rng.Uint64()
	}
	slices.Sort(asked)
	frame := pslite.AppendKeys(nil, asked)
	for name, table := range map[string]*Table{"thousand": NewTable(8).With(few), "million": many} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			for b.Loop() {
				if table.Touches(frame) {
					b.Fatal("a key at home counts as displaced")
				}
			}
			b.ReportMetric(float64(len(asked)*b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
		})
	}
}
