package route

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// million returns a table of a million displaced keys, and the keys, ascending:
// scattered over all numbers, or one beside the other.
func million(dense bool) (*Table, []uint64) {
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	keys, changes := make([]uint64, n), make([]plan.Range, n)
	for i := range keys {
		if keys[i] = rng.Uint64(); dense {
			keys[i] = 1<<61 + 2*uint64(i)
		}
		changes[i] = plan.Range{Keys: plan.One(keys[i]), Owner: (plan.HomeOf(keys[i], 8) + 1) % 8}
	}
	t := NewTable(8)
	t.Set(changes)
	slices.Sort(keys)
	return t, keys
}

// requests are lists of 10,000 ascending keys, of which so many in a hundred are
// of the displaced ones; the others lie between them.
func requests(displaced []uint64, percent int) (frames []pslite.Keys) {
	const n, lists = 10_000, 100
	rng := rand.New(rand.NewPCG(5, 5))
	for range lists {
		asked := make([]uint64, n)
		// A tenth of a batch's keys lie close together, the rest anywhere.
		from := rng.IntN(len(displaced) - n/10)
		for i := range asked {
			at := rng.IntN(len(displaced))
			if i < n/10 {
				at = from + i
			}
			if asked[i] = displaced[at]; rng.IntN(100) >= percent {
				asked[i]++
			}
		}
		slices.Sort(asked)
		frames = append(frames, pslite.AppendKeys(nil, asked))
	}
	return frames
}

// BenchmarkOwners asks for the lists that requests have: ascending.
func BenchmarkOwners(b *testing.B) {
	for name, dense := range map[string]bool{"scattered": false, "dense": true} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		table, keys := million(dense)
		runtime.GC()
		runtime.ReadMemStats(&after)
		mb := float64(after.HeapAlloc-before.HeapAlloc-uint64(8*cap(keys))) / 1e6
		for _, c := range []struct {
			name    string
			percent int
		}{{"displaced", 100}, {"mixed", 50}, {"home", 0}} {
			frames := requests(keys, c.percent)
			b.Run(name+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				owners := make([]int32, 0, 10_000)
				var received pslite.Keys
				n := 0
				for b.Loop() {
					b.StopTimer()
					received = append(received[:0], frames[n%len(frames)]...) // as by a read from a socket
					n++
					b.StartTimer()
					owners = table.AppendOwners(owners[:0], received)
				}
				b.ReportMetric(float64(len(owners)*b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
				b.ReportMetric(mb, "MB")
			})
		}
	}
}

// BenchmarkOwner asks for one key after the other, in no order.
func BenchmarkOwner(b *testing.B) {
	table, keys := million(false)
	rng := rand.New(rand.NewPCG(3, 3))
	for name, add := range map[string]uint64{"displaced": 0, "home": 1} {
		rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			sum, i := int32(0), 0
			for b.Loop() {
				sum += table.Owner(keys[i%len(keys)] + add)
				i++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
			if sum == 42 {
				b.Log(sum)
			}
		})
	}
}

// BenchmarkTouches asks for messages of 10,000 keys of which none is displaced.
func BenchmarkTouches(b *testing.B) {
	for name, dense := range map[string]bool{"scattered": false, "dense": true} {
		many, keys := million(dense)
		frames := requests(keys, 0)
		few := NewTable(8)
		for at := range 1000 {
			few.Set([]plan.Range{{Keys: plan.One(keys[1000*at]), Owner: many.Owner(keys[1000*at])}})
		}
		for of, table := range map[string]*Table{"thousand": few, "million": many} {
			b.Run(name+"/"+of, func(b *testing.B) {
				b.SetBytes(int64(len(frames[0])))
				b.ReportAllocs()
				var received pslite.Keys
				n := 0
				for b.Loop() {
					b.StopTimer()
					received = append(received[:0], frames[n%len(frames)]...)
					n++
					b.StartTimer()
					if table.Touches(received) {
						b.Fatal("a key at home counts as displaced")
					}
				}
				b.ReportMetric(float64(frames[0].Len()*b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
			})
		}
	}
}

// BenchmarkSet gives 2048 of a million displaced keys, and as many at home,
// other owners.
func BenchmarkSet(b *testing.B) {
	table, keys := million(false)
	rng := rand.New(rand.NewPCG(6, 6))
	changes := make([]plan.Range, 4096)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for i := range changes {
			changes[i] = plan.Range{Keys: plan.One(keys[rng.IntN(len(keys))] + uint64(i%2)), Owner: rng.Int32N(8)}
		}
		b.StartTimer()
		table.Set(changes)
	}
	b.ReportMetric(float64(len(changes)*b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
}
