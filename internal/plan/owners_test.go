package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A slow map of every key's owner says the same as Owners.
func TestOwnersAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const keys = 200
		base := rapid.SampledFrom([]uint64{0, 1 << 40, math.MaxUint64 - keys + 1}).Draw(t, "base")
		var o Owners
		var slow [keys]int32
		for i := range slow {
			slow[i] = Home
		}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			first := rapid.IntRange(0, keys-1).Draw(t, "first")
			last := rapid.IntRange(first, keys-1).Draw(t, "last")
			owner := rapid.Int32Range(Home, 3).Draw(t, "owner")
			o.Set(Range{Keys{base + uint64(first), base + uint64(last)}, owner})
			for i := first; i <= last; i++ {
				slow[i] = owner
			}
			check(t, &o, base, slow[:])
		}
		for r := range o.Within(Keys{base, base + keys - 1}) {
			for k := r.First; ; k++ {
				if slow[k-base] != r.Owner {
					t.Fatalf("key %d in %v is with %d", k, r, slow[k-base])
				}
				if k == r.Last {
					break
				}
			}
		}
	})
}

type failer interface{ Fatalf(string, ...any) }

func check(t failer, o *Owners, base uint64, slow []int32) {
	displaced, ranges := uint64(0), 0
	for i, owner := range slow {
		if got := o.Owner(base + uint64(i)); got != owner {
			t.Fatalf("key %d has owner %d, want %d", base+uint64(i), got, owner)
		}
		if owner != Home {
			displaced++
			if i == 0 || slow[i-1] != owner {
				ranges++
			}
		}
	}
	all := slices.Collect(o.All())
	if o.Keys() != displaced || o.Ranges() != ranges || len(all) != ranges {
		t.Fatalf("%d keys in %d ranges (%d listed), want %d in %d", o.Keys(), o.Ranges(), len(all), displaced, ranges)
	}
	for i := 1; i < len(all); i++ {
		if all[i].First <= all[i-1].Last {
			t.Fatalf("%v follows %v", all[i], all[i-1])
		}
	}
}

// Many ranges take several chunks; taken away in any order, none is left.
func TestOwnersOfManyKeys(t *testing.T) {
	const n = 20 * chunkRanges
	var o Owners
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	for _, i := range order {
		o.Set(Range{One(uint64(i) * 3), int32(i % 7)})
	}
	if o.Ranges() != n || o.Keys() != n {
		t.Fatalf("%d ranges, %d keys, want %d", o.Ranges(), o.Keys(), n)
	}
	for _, i := range order {
		if got := o.Owner(uint64(i) * 3); got != int32(i%7) {
			t.Fatalf("key %d has owner %d", i*3, got)
		}
		if got := o.Owner(uint64(i)*3 + 1); got != Home {
			t.Fatalf("key %d has owner %d, not home", i*3+1, got)
		}
	}
	for _, i := range order[:n/2] {
		o.Set(Range{One(uint64(i) * 3), Home})
	}
	o.Set(Range{Keys{0, math.MaxUint64}, Home})
	if o.Ranges() != 0 || o.Keys() != 0 || len(o.chunks) != 0 {
		t.Errorf("%d ranges, %d keys, %d chunks are left", o.Ranges(), o.Keys(), len(o.chunks))
	}
}

func TestHome(t *testing.T) {
	for _, servers := range []int{1, 2, 3, 7, 64} {
		next := uint64(0)
		for rank := range servers {
			k := HomeRange(int32(rank), servers)
			if k.First != next {
				t.Errorf("%d servers: %d begins with %d, want %d", servers, rank, k.First, next)
			}
			for _, key := range []uint64{k.First, k.Last, k.First + k.Len()/2} {
				if got := HomeOf(key, servers); got != int32(rank) {
					t.Errorf("%d servers: key %d is at home with %d, want %d", servers, key, got, rank)
				}
			}
			next = k.Last + 1
		}
		if next != 0 {
			t.Errorf("%d servers: the last one ends before %d", servers, next)
		}
	}
}
