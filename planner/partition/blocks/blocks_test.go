package blocks

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/require"
)

func TestLayoutCountsItsSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{Samples: rapid.Int64Range(1, 300).Draw(t, "samples"), Seed: rapid.Uint64().Draw(t, "seed")}
		l.K = rapid.IntRange(1, int(l.Samples)).Draw(t, "k")
		l.Blocks = rapid.IntRange(1, int(l.Samples)).Draw(t, "blocks")
		require.NoError(t, l.Validate())
		sizes, numbers := make([]int64, l.Blocks), map[[2]int64]bool{}
		for s := range l.Samples {
			b := l.BlockOf(s)
			sizes[b]++
			numbers[[2]int64{int64(b), s / int64(l.Blocks)}] = true
		}
		if len(numbers) != int(l.Samples) {
			t.Fatalf("%d places in blocks for %d samples", len(numbers), l.Samples)
		}
		all, waves := make([]int64, l.K), 0
		for b, size := range sizes {
			if got := l.Size(b); got != size {
				t.Fatalf("block %d has %d samples, Size says %d", b, size, got)
			}
			var sum int64
			for i, q := range l.Quota(b) {
				sum += q
				all[i] += q
			}
			if sum != size {
				t.Fatalf("block %d of %d samples has quotas for %d", b, size, sum)
			}
			wave := l.Wave(b)
			if wave < waves || wave >= Waves || (wave == 0) != (b == 0) {
				t.Fatalf("block %d of %d is in wave %d, the one before in %d", b, l.Blocks, wave, waves)
			}
			waves = wave
		}
		if limit := (l.Samples + int64(l.K) - 1) / int64(l.K); slices.Max(all) > limit {
			t.Fatalf("quotas %v exceed %d", all, limit)
		}
	})
}

func TestLayoutIsValidated(t *testing.T) {
	for _, l := range []Layout{{Samples: 3, Blocks: 1, K: 4}, {Samples: 3, Blocks: 4, K: 2}, {Samples: 3, Blocks: 0, K: 2}, {Samples: 3, Blocks: 1, K: 0}, {Samples: 1 << 40, Blocks: 1, K: 1 << 16}} {
		if l.Validate() == nil {
			t.Errorf("%+v passes", l)
		}
	}
	if l := (Layout{Samples: 3, Blocks: 1, K: 4}); !errors.Is(l.Validate(), partition.ErrInfeasible) {
		t.Error("more machines than samples are possible")
	}
}

// drawRows draws rows of distinct ids.
func drawRows(t *rapid.T, n int) [][]uint64 {
	rows := make([][]uint64, n)
	for s := range rows {
		rows[s] = rapid.SliceOfNDistinct(rapid.SampledFrom([]uint64{0, 1, 2, 3, 5, 8, 13, 21, 1 << 40, 1 << 63}), 0, 8, rapid.ID[uint64]).Draw(t, "row")
	}
	return rows
}

// TestAssignEqualsRecounting does what Assign does with all sets rebuilt for
// each sample.
func TestAssignEqualsRecounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom([]int{1, 2, 3, 7, 65}).Draw(t, "k")
		n := rapid.IntRange(1, 20).Draw(t, "n")
		rows := drawRows(t, n)
		l := Layout{Samples: int64(n + k), Blocks: 1, K: k}
		quota := l.Quota(0)
		b := NewBlock(0, rows)
		words := setWords(k)
		others := make([]uint64, words*len(b.IDs))
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for p := range b.IDs {
			for i := range k {
				if random.IntN(3) == 0 {
					addMember(others[p*words:(p+1)*words], i)
				}
			}
		}
		if rapid.Bool().Draw(t, "assigned") {
			for s := range b.On {
				b.On[s] = uint16(random.IntN(k))
			}
		}
		beyond := make([]int64, k) // features of other blocks only
		for i := range beyond {
			beyond[i] = int64(random.IntN(9))
		}
		want := slowly(b, rows, others, beyond, quota)
		rank := slices.Clone(beyond)
		for p := range b.IDs {
			for i := range k {
				if hasMember(others[p*words:], i) || hasMember(b.Users(k)[p*words:], i) {
					rank[i]++
				}
			}
		}
		require.NoError(t, b.Assign(others, rank, quota))
		if !slices.Equal(b.On, want) {
			t.Fatalf("samples on %v, want %v", b.On, want)
		}
	})
}

func slowly(b *Block, rows [][]uint64, others []uint64, beyond, quota []int64) []uint16 {
	k, words := len(quota), setWords(len(quota))
	on := slices.Clone(b.On)
	m := pricedMachines{Rank: make([]int64, k), Size: make([]int64, k), Limit: quota, Unlike: knownPrice}
	if on[0] == None {
		m.Unlike = unknownPrice
	}
	for s := range on {
		on[s] = None
		users := map[uint64]map[int]bool{}
		for p, id := range b.IDs {
			users[id] = map[int]bool{}
			for i := range k {
				if hasMember(others[p*words:], i) {
					users[id][i] = true
				}
			}
		}
		for other, machine := range on {
			if machine != None {
				for _, id := range rows[other] {
					users[id][int(machine)] = true
				}
			}
		}
		copy(m.Rank, beyond)
		for _, of := range users {
			for i := range of {
				m.Rank[i]++
			}
		}
		known, differ := make([]int32, k), 0
		for _, id := range rows[s] {
			if len(users[id]) < k {
				differ++
				for i := range users[id] {
					known[i]++
				}
			}
		}
		to := m.Cheapest(len(rows[s]), differ, known)
		m.Size[to]++
		m.Row++
		on[s] = uint16(to)
	}
	return on
}

// TestBucketsTellWhatOthersUse compares with maps, by way of the bytes.
func TestBucketsTellWhatOthersUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom([]int{1, 3, 8, 65}).Draw(t, "k")
		buckets := rapid.IntRange(1, 4).Draw(t, "buckets")
		all := make([]*Block, rapid.IntRange(1, 5).Draw(t, "blocks"))
		uses := map[uint64]map[int]map[int]bool{} // feature, machine, block
		for n := range all {
			rows := drawRows(t, 4)
			all[n] = NewBlock(n, rows)
			for s, row := range rows {
				machine := rapid.IntRange(0, k-1).Draw(t, "machine")
				all[n].On[s] = uint16(machine)
				for _, id := range row {
					if uses[id] == nil {
						uses[id] = map[int]map[int]bool{}
					}
					if uses[id][machine] == nil {
						uses[id][machine] = map[int]bool{}
					}
					uses[id][machine][n] = true
				}
			}
		}
		lists := make([][]List, buckets)
		for _, b := range all {
			for i, l := range b.Lists(k, buckets) {
				l := require.Value(DecodeList(l.Append(nil, k), k))(t)
				lists[i] = append(lists[i], l)
			}
		}
		for n, b := range all {
			replies, rank := make([][]uint64, buckets), make([]int64, k)
			for i := range lists {
				bucket := NewBucket(k, lists[i])
				r := Reply{Bucket: i, Rank: bucket.Rank(), Others: bucket.Others(&lists[i][n])}
				r, err := DecodeReply(r.Append(nil), k)
				if err != nil || r.Bucket != i {
					t.Fatal(r.Bucket, err)
				}
				replies[i] = r.Others
				for m, c := range r.Rank {
					rank[m] += c
				}
			}
			others := require.Value(b.Gather(k, replies))(t)
			for p, id := range b.IDs {
				for m := range k {
					count := len(uses[id][m])
					if uses[id][m][n] {
						count--
					}
					if hasMember(others[p*setWords(k):], m) != (count > 0) {
						t.Fatalf("feature %d on machine %d: %d other blocks use it there", id, m, count)
					}
				}
			}
			for m := range k {
				var want int64
				for _, of := range uses {
					if len(of[m]) > 0 {
						want++
					}
				}
				if rank[m] != want {
					t.Fatalf("machine %d uses %d features, rank says %d", m, want, rank[m])
				}
			}
		}
	})
}

func TestBlocksTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t, rapid.IntRange(0, 9).Draw(t, "n"))
		var sent []byte
		for _, s := range rand.New(rand.NewPCG(1, 2)).Perm(len(rows)) {
			slices.Sort(rows[s])
			sent = (&Row{uint64(s), rows[s]}).Append(sent)
		}
		got := require.Value(DecodeRows(sent, nil))(t)
		b := require.Value(Collect(7, int64(len(rows)), got))(t)
		for s := range b.On {
			b.On[s] = uint16(rapid.SampledFrom([]int{0, 5, None}).Draw(t, "machine"))
		}
		c, err := DecodeBlock(b.Append(nil))
		if err != nil || c.Number != 7 || !slices.Equal(c.On, b.On) {
			t.Fatalf("block %+v became %+v, %v", b, c, err)
		}
		for s, row := range rows {
			var ids []uint64
			for _, slot := range c.Slot[c.Start[s]:c.Start[s+1]] {
				ids = append(ids, c.IDs[slot])
			}
			if !slices.Equal(ids, row) {
				t.Fatalf("row %d became %v, want %v", s, ids, row)
			}
		}
		if _, err := Collect(7, int64(len(rows))+1, got); !errors.Is(err, ErrChanged) {
			t.Fatalf("a row too few: %v", err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	b := NewBlock(3, [][]uint64{{1, 2}, {2, 1 << 63}, {}})
	f.Add(b.Append(nil))
	f.Add(b.Lists(8, 1)[0].appended(8))
	f.Add((&Reply{Bucket: 1, Rank: make([]int64, 8), Others: []uint64{1, 2}}).Append(nil))
	f.Add((&Row{2, []uint64{4, 9}}).Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		if b, err := DecodeBlock(in); err == nil {
			again, err := DecodeBlock(b.Append(nil))
			if err != nil || !bytes.Equal(again.Append(nil), b.Append(nil)) {
				t.Fatal("a block changes on its way")
			}
		}
		if l, err := DecodeList(in, 8); err == nil {
			NewBucket(8, []List{l})
		}
		if r, err := DecodeReply(in, 8); err == nil && len(r.Rank) != 8 {
			t.Fatal("a reply of other machines")
		}
		if rows, err := DecodeRows(in, nil); err == nil {
			_, _ = Collect(0, int64(len(rows)), rows) // must not panic
		}
	})
}

func (l List) appended(k int) []byte { return l.Append(nil, k) }

func TestPartitionIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t, rapid.IntRange(1, 60).Draw(t, "n"))
		g := require.Value(graph.FromRows(rows))(t)
		o := Options{
			K: rapid.IntRange(1, len(rows)).Draw(t, "k"), Blocks: rapid.IntRange(1, len(rows)).Draw(t, "blocks"),
			Buckets: rapid.IntRange(1, 5).Draw(t, "buckets"), Passes: rapid.IntRange(0, 2).Draw(t, "passes"), Seed: rapid.Uint64().Draw(t, "seed"),
		}
		a := require.Value(Partition(t.Context(), g, o))(t)
		require.NoError(t, partition.Check(g, a, partition.Options{K: o.K}))
		again, err := Partition(t.Context(), g, o)
		if err != nil || !slices.Equal(again.Samples, a.Samples) || !slices.Equal(again.Params, a.Params) {
			t.Fatalf("another outcome with the same seed, %v", err)
		}
	})
}

func TestFit(t *testing.T) {
	for _, tc := range []struct {
		samples, edges  int64
		k               int
		memory          int64
		blocks, buckets int
		fails           bool
	}{
		{samples: 1000, edges: 10_000, k: 8, memory: LeastMemory, blocks: 1, buckets: 16},
		{samples: 100_000, edges: 1_000_000, k: 8, memory: 1 << 30, blocks: 16, buckets: 16},
		{samples: 100_000_000, edges: 1_000_000_000, k: 8, memory: 1 << 30, blocks: 128, buckets: 309},
		{samples: 1000, edges: 10_000, k: 8, memory: LeastMemory - 1, fails: true},
		{samples: 10, edges: 1_000_000_000, k: 8, memory: LeastMemory, fails: true},
	} {
		blocks, buckets, err := Fit(tc.samples, tc.edges, tc.k, tc.memory)
		if (err != nil) != tc.fails || blocks != tc.blocks || buckets != tc.buckets {
			t.Errorf("%+v: %d blocks, %d buckets, %v", tc, blocks, buckets, err)
		}
	}
}
