package keylist

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// sortedKeys are new ascending keys of a dense range, as of a large model.
func sortedKeys(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = rng.Uint64N(uint64(n) * 20)
	}
	slices.Sort(keys)
	return listOf(slices.Compact(keys)...)
}

func perKey(b *testing.B, keys int) {
	b.Helper()
	b.SetBytes(int64(keys * keySize))
	b.ReportMetric(float64(keys)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
}

// BenchmarkCopy is the peer of the others: the same list, copied.
func BenchmarkCopy(b *testing.B) {
	list := sortedKeys(1, 100_000)
	dst := make([]byte, len(list))
	for b.Loop() {
		copy(dst, list)
	}
	perKey(b, count(list))
}

func BenchmarkEncodeRepeated(b *testing.B) {
	list := sortedKeys(1, 100_000)
	e := NewEncoder(DefaultLimits, nil)
	dst := e.Append(nil, list)
	b.ReportAllocs()
	for b.Loop() {
		dst = e.Append(dst[:0], list)
	}
	perKey(b, count(list))
}

func BenchmarkDecodeRepeated(b *testing.B) {
	list := sortedKeys(1, 100_000)
	e, d := NewEncoder(DefaultLimits, nil), NewDecoder(DefaultLimits, nil)
	pass(b, e, d, list)
	src := e.Append(nil, list)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := d.Decode(src); err != nil {
			b.Fatal(err)
		}
	}
	perKey(b, count(list))
}

// benchmarkNew codes lists none of which is in the table when it comes.
func benchmarkNew(b *testing.B, lists [][]byte, decode bool) {
	e, d := NewEncoder(DefaultLimits, nil), NewDecoder(DefaultLimits, nil)
	keys, packed := 0, 0
	var dst []byte
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		list := lists[i%len(lists)]
		i++
		if decode {
			b.StopTimer()
		}
		e.finder.serials = nil // every list is new
		dst = e.Append(dst[:0], list)
		keys += count(list)
		packed += len(dst)
		if !decode {
			continue
		}
		b.StartTimer()
		if _, _, err := d.Decode(dst); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(keys)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
	b.ReportMetric(float64(packed)/float64(keys), "bytes/key")
}

func dense() [][]byte {
	lists := make([][]byte, 8)
	for i := range lists {
		lists[i] = sortedKeys(uint64(i), 100_000)
	}
	return lists
}

func BenchmarkEncodeNewSorted(b *testing.B) { benchmarkNew(b, dense(), false) }
func BenchmarkDecodeNewSorted(b *testing.B) { benchmarkNew(b, dense(), true) }
func BenchmarkEncodeNewHashed(b *testing.B) { benchmarkNew(b, batches(1, 20000, 64, 5000), false) }
func BenchmarkDecodeNewHashed(b *testing.B) { benchmarkNew(b, batches(1, 20000, 64, 5000), true) }
