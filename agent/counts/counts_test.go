package counts

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// plain is the slow, obvious table.
type plain map[int]map[uint64]*Sums

func (p plain) add(b Batch) {
	if p[b.Worker] == nil {
		p[b.Worker] = map[uint64]*Sums{}
	}
	for i, k := range b.Run.Append(slices.Clone(b.Keys)) {
		s := p[b.Worker][k]
		if s == nil {
			s = new(Sums)
			p[b.Worker][k] = s
		}
		s.Add(b.Each)
		if b.Lens != nil {
			s[b.LenPlane] += b.lenBytes(i)
		}
	}
}

func (p plain) forget(first, last uint64) {
	for _, keys := range p {
		maps.DeleteFunc(keys, func(k uint64, _ *Sums) bool { return first <= k && k <= last })
	}
}

// sums returns what the worker did with the keys from first to last.
func (p plain) sums(worker int, first, last uint64) Sums {
	var sum Sums
	for k, s := range p[worker] {
		if first <= k && k <= last {
			sum.Add(*s)
		}
	}
	return sum
}

func (p plain) keys(first, last uint64) uint64 {
	seen := map[uint64]bool{}
	for _, keys := range p {
		for k := range keys {
			if first <= k && k <= last {
				seen[k] = true
			}
		}
	}
	return uint64(len(seen))
}

// drawBatch draws key lists as jobs send them: dense ranges, ranges with a
// step, sparse sorted lists, some of a few keys, now and then unsorted ones with repeats.
func drawBatch(t *rapid.T) Batch {
	b := Batch{Worker: rapid.IntRange(0, 3).Draw(t, "worker")}
	n := rapid.IntRange(1, 1500).Draw(t, "n")
	start := rapid.SampledFrom([]uint64{0, 7, 1 << 40, math.MaxUint64 - 20000}).Draw(t, "start")
	seed := rapid.Uint64().Draw(t, "seed")
	switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); kind {
	case 0, 1:
		step := uint64(1 + 2*kind)
		for i := range uint64(n) {
			b.Keys = append(b.Keys, start+i*step)
		}
		if rapid.Bool().Draw(t, "run") {
			b.Keys, b.Run = nil, Run{start, step, n}
			if again := rapid.IntRange(0, 2).Draw(t, "repeated"); again > 0 { // some run that came before
				b.Run = Run{7, 1, 1000 * again}
			}
		}
	case 2, 3, 4:
		if kind == 4 { // a few between those that are known
			n = min(n, 12)
		}
		for range n {
			seed = splitmix.Mix(seed + 1)
			b.Keys = append(b.Keys, start+seed%5000)
		}
		slices.Sort(b.Keys)
		b.Keys = slices.Compact(b.Keys)
	default:
		for range n {
			seed = splitmix.Mix(seed + 1)
			b.Keys = append(b.Keys, start+seed%700)
		}
	}
	for p := range b.Each {
		b.Each[p] = rapid.SampledFrom([]uint64{0, 0, 1, 4, 6, 200, 70000, 1 << 33}).Draw(t, "amount")
	}
	if rapid.IntRange(0, 4).Draw(t, "lens") == 0 {
		b.LenUnit, b.LenPlane = 4, PushedBytes
		for i := range b.Keys {
			b.Lens = append(b.Lens, int32(splitmix.Mix(seed+uint64(i))%9)-1)
		}
	}
	return b
}

func TestExactAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, want := New(DefaultOptions), plain{}
		table.front = newFront(1 << rapid.IntRange(4, 9).Draw(t, "slots"))
		for range rapid.IntRange(1, 12).Draw(t, "batches") {
			b := drawBatch(t)
			want.add(b)
			table.Add(b)
			if rapid.IntRange(0, 3).Draw(t, "forget") == 0 {
				first := b.Run.First
				if b.Run.N == 0 {
					first = b.Keys[len(b.Keys)/2]
				}
				first -= min(first, rapid.SampledFrom([]uint64{0, 1, 600}).Draw(t, "before"))
				last := first + rapid.SampledFrom([]uint64{0, 5, 700, 9000}).Draw(t, "span")
				if last < first {
					last = math.MaxUint64
				}
				want.forget(first, last)
				table.Forget(first, last)
			}
		}
		for worker, keys := range want {
			for k, s := range keys {
				if got := table.Key(worker, k); !got.Exact || got.Earlier != 0 || got.Sums != *s {
					t.Fatalf("worker %d key %d: %+v, want %v", worker, k, got, *s)
				}
			}
		}
		size := table.Size()
		if !size.Exact() || size.Keys != want.keys(0, math.MaxUint64) || size.ExactKeys != size.Keys {
			t.Fatalf("size %+v, want %d keys, all exact", size, want.keys(0, math.MaxUint64))
		}
		checkBlocks(t, table, want, 0, math.MaxUint64, rapid.IntRange(1, 50).Draw(t, "blocks"))
		checkBlocks(t, table, want, 100, 1<<40+300, 7)
		var sum Sums
		for w := range want {
			sum.Add(want.sums(w, 0, math.MaxUint64))
		}
		if size.Total != sum {
			t.Fatalf("total %v, want %v", size.Total, sum)
		}
		checkUsed(t, table)
	})
}

func checkBlocks(t *rapid.T, table *Table, want plain, first, last uint64, n int) {
	blocks := table.Blocks(first, last, n)
	keys := want.keys(first, last)
	if (len(blocks) == 0) != (keys == 0) || len(blocks) > n {
		t.Fatalf("%d blocks for %d keys, asked for %d", len(blocks), keys, n)
	}
	for i, b := range blocks {
		if i > 0 && b.First <= blocks[i-1].Last || b.Last < b.First {
			t.Fatalf("block %d: [%d, %d] after %d", i, b.First, b.Last, blocks[i-1].Last)
		}
		if got := want.keys(b.First, b.Last); got != b.Keys || b.Keys > keys/uint64(n)+1 {
			t.Fatalf("block %d has %d keys, truth %d, of %d in %d blocks", i, b.Keys, got, keys, n)
		}
		for w, s := range b.Workers {
			if truth := want.sums(w, b.First, b.Last); s != truth {
				t.Fatalf("block %d worker %d: %v, want %v", i, w, s, truth)
			}
		}
	}
}

func checkUsed(t *rapid.T, table *Table) {
	used := 0
	for i, l := range table.leaves {
		used += l.bytes()
		if table.firsts[i] != l.first {
			t.Fatalf("leaf %d starts at %d, its index says %d", i, l.first, table.firsts[i])
		}
	}
	if used != table.used {
		t.Fatalf("leaves take %d bytes, table says %d", used, table.used)
	}
}

func TestFoldedAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, want := New(Options{MemoryBytes: 24 << 10, SketchBytes: 1 << 20}), plain{}
		if rapid.Bool().Draw(t, "front") {
			table.front = newFront(16)
			table.opts.MemoryBytes += table.front.bytes()
		}
		for range rapid.IntRange(10, 30).Draw(t, "batches") {
			b := drawBatch(t)
			want.add(b)
			table.Add(b)
		}
		checkUsed(t, table)
		size := table.Size()
		var sum Sums
		for w := range want {
			sum.Add(want.sums(w, 0, math.MaxUint64))
		}
		if size.Total != sum {
			t.Fatalf("total %v, want %v", size.Total, sum)
		}
		for _, b := range table.Blocks(0, math.MaxUint64, 5) {
			for w, s := range b.Workers {
				if truth := want.sums(w, b.First, b.Last); s != truth {
					t.Fatalf("block [%d, %d] worker %d: %v, want %v", b.First, b.Last, w, s, truth)
				}
			}
		}
		for worker, keys := range want {
			for k, s := range keys {
				got := table.Key(worker, k)
				if got.Accesses()+got.Earlier < s.Accesses() && s.Accesses() < math.MaxUint32 {
					t.Fatalf("worker %d key %d: %+v is below the truth %v", worker, k, got, *s)
				}
			}
		}
	})
}

// A stream with few hot and many cold keys, far more than fit: the error of
// the estimates must be what Bound states, the hottest keys right.
func TestSketchBound(t *testing.T) {
	table := New(Options{MemoryBytes: 1 << 20, SketchBytes: 1 << 20})
	truth := map[uint64]uint64{}
	seed := uint64(1)
	const rounds, batch = 400, 2000
	for range rounds {
		keys := make([]uint64, 0, batch+50)
		for range batch {
			seed = splitmix.Mix(seed + 1)
			keys = append(keys, seed)
		}
		for hot := range uint64(50) {
			keys = append(keys, splitmix.Mix(hot+1e9))
		}
		slices.Sort(keys)
		for _, k := range keys {
			truth[k]++
		}
		table.Add(Batch{Keys: keys, Each: Sums{Pulls: 1}})
	}
	size := table.Size()
	if size.FoldedBlocks == 0 || size.MemoryBytes > 2<<20 {
		t.Fatalf("nothing was folded, or too little: %+v", size)
	}
	if distinct := float64(len(truth)); math.Abs(float64(size.Keys)-distinct) > 0.05*distinct {
		t.Errorf("%d distinct keys, truth %.0f", size.Keys, distinct)
	}
	bound, above := table.Bound(), 0
	for k, n := range truth {
		got := table.Key(0, k)
		estimate := got.Accesses() + got.Earlier
		if estimate < n {
			t.Fatalf("key %d: %d, below the truth %d", k, estimate, n)
		}
		if estimate > n+bound {
			above++
		}
	}
	if share := float64(above) / float64(len(truth)); share > 1-size.SketchPercent/100 {
		t.Errorf("%.3f of the estimates are more than %d too high; stated are %.3f", share, bound, 1-size.SketchPercent/100)
	}
	hottest, curve := table.Hottest(50)
	for _, k := range hottest {
		if truth[k.Key] != rounds || k.Accesses() < rounds || k.Accesses() > rounds+bound {
			t.Errorf("key %d is among the hottest with %d accesses, truth %d, bound %d", k.Key, k.Accesses(), truth[k.Key], bound)
		}
	}
	last := curve[len(curve)-1]
	if total := float64(rounds * (batch + 50)); math.Abs(float64(last.Accesses)-total) > 0.02*total {
		t.Errorf("the skew curve ends at %d accesses, truth %.0f", last.Accesses, total)
	}
}

func TestHottest(t *testing.T) {
	table := New(DefaultOptions)
	for k := range uint64(2000) {
		keys := make([]uint64, 0, 2000)
		for i := k; i < 2000; i += 1 + k {
			keys = append(keys, i)
		}
		table.Add(Batch{Worker: int(k % 2), Keys: keys, Each: Sums{Pushes: 1, PushedBytes: 4}})
	}
	divisors := func(n uint64) (count uint64) { // i is in the list of k when k+1 divides i-k
		for k := range n + 1 {
			if (n-k)%(k+1) == 0 {
				count++
			}
		}
		return count
	}
	hottest, curve := table.Hottest(10)
	if len(hottest) != 10 {
		t.Fatalf("%d keys, want 10", len(hottest))
	}
	best := uint64(0)
	for k := range uint64(2000) {
		best = max(best, divisors(k))
	}
	if hottest[0].Accesses() != best {
		t.Errorf("hottest key %d has %d accesses, want %d", hottest[0].Key, hottest[0].Accesses(), best)
	}
	for i, k := range hottest {
		if k.Accesses() != divisors(k.Key) || k.Sums[PushedBytes] != 4*k.Sums[Pushes] {
			t.Errorf("key %d: %v, want %d pushes", k.Key, k.Sums, divisors(k.Key))
		}
		if i > 0 && k.Accesses() > hottest[i-1].Accesses() {
			t.Errorf("key %d is out of order", k.Key)
		}
	}
	if curve[len(curve)-1].Keys != 2000 || curve[0].Accesses < best {
		t.Errorf("skew curve %v", curve)
	}
}
