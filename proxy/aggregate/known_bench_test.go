package aggregate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// BenchmarkKnown is what it takes to see that most keys of a list that was not pushed before have
// been, as of sparse data.
func BenchmarkKnown(b *testing.B) {
	const all, some = 40_000, 1000
	rng := rand.New(rand.NewPCG(1, 1))
	k := newKnown()
	var lists []subject
	for range 200 {
		keys := make([]uint64, some)
		for i := range keys {
			keys[i] = uint64(rng.IntN(all)) * 0x9E3779B97F4A7C15
		}
		slices.Sort(keys)
		lists = append(lists, subjectOf(&pslite.Message{Data: [][]byte{pslite.AppendKeys(nil, slices.Compact(keys)), nil}}, Least))
	}
	for i := range lists[:100] {
		k.learn(&lists[i])
	}
	lists = lists[100:]
	for i := 0; b.Loop(); i = (i + 1) % len(lists) {
		s := lists[i]
		if !k.recognize(&s) {
			b.Fatal("not recognized")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/some, "ns/key")
}
