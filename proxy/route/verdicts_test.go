package route

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// The cache says what the table says, whatever changes in between and however often lists come
// again.
func TestCachedOwnersAreTheTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	table, hits := NewTable(4), 0
	var cache ownerLists
	var lists []pslite.Keys
	for range 30 {
		keys := make([]uint64, 1+rng.IntN(300))
		for i := range keys {
			keys[i] = rng.Uint64N(1 << 12)
		}
		slices.Sort(keys)
		lists = append(lists, pslite.AppendKeys(nil, slices.Compact(keys)))
	}
	for range 3000 {
		if rng.IntN(20) == 0 {
			first := rng.Uint64N(1 << 12)
			table.Set([]plan.Range{{Keys: plan.Keys{First: first, Last: first + rng.Uint64N(200)}, Owner: rng.Int32N(5) - 1}})
		}
		keys := slices.Clone(lists[rng.IntN(len(lists))]) // as in a buffer that is reused
		before := cache.next
		owners, distinct := cache.of(table, keys)
		if want := table.AppendOwners(nil, keys); !slices.Equal(owners, want) || !slices.Equal(distinct, ranks(want)) {
			t.Fatalf("%d keys have the owners %v, want %v", keys.Len(), owners, want)
		}
		if len(keys) >= minVerdict && cache.next == before {
			hits++
		}
		clear(keys)
	}
	if hits < 100 {
		t.Errorf("%d lists were found in the cache", hits)
	}
}
