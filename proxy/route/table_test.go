package route

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
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
			table.Set(changes)
		}
		var frame pslite.Keys
		for i := range owner {
			frame = pslite.AppendKeys(frame, []uint64{base + uint64(i)})
		}
		if got := table.AppendOwners(nil, frame); !slices.Equal(got, owner[:]) {
			t.Fatalf("owners are %v, want %v", got, owner)
		}
		copied, cloned := NewTable(servers), table.Clone()
		copied.Set(slices.Collect(table.All))
		table.Set([]plan.Range{{Keys: plan.Keys{First: base, Last: base + keys - 1}, Owner: plan.Home}})
		for i, want := range owner {
			key := base + uint64(i)
			if got := cloned.Owner(key); got != want {
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
		if displaced && !cloned.Touches(pslite.AppendKeys(nil, asked)) {
			t.Fatalf("no displaced key is seen in %d from %d on", n, from)
		}
	})
}

// A key whose bucket was full when it came is found also after all keys of that
// bucket are gone.
func TestKeysThatWereCrowdedOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	const n, servers = 20_000, 3
	keys := make([]uint64, n)
	table := NewTable(servers)
	for i := range keys {
		keys[i] = rng.Uint64()
		table.Set([]plan.Range{{Keys: plan.One(keys[i]), Owner: (plan.HomeOf(keys[i], servers) + 1) % servers}})
	}
	rng.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for len(keys) > n/100 {
		rest := len(keys) * 9 / 10
		for _, k := range keys[rest:] {
			table.Set([]plan.Range{{Keys: plan.One(k), Owner: plan.Home}})
		}
		keys = keys[:rest]
		for _, k := range keys {
			want := (plan.HomeOf(k, servers) + 1) % servers
			list := pslite.AppendKeys(nil, []uint64{k})
			if got, alone := table.AppendOwners(nil, list)[0], table.Owner(k); got != want || alone != want || !table.Touches(list) {
				t.Fatalf("with %d keys displaced, key %d has owner %d in a list and %d alone, want %d", rest, k, got, alone, want)
			}
		}
	}
}

// A router remembers which lists have no displaced key until the table changes.
func TestVerdictsHoldUntilTheTableChanges(t *testing.T) {
	table := NewTable(2)
	table.Set([]plan.Range{{Keys: plan.One(5000), Owner: 1}})
	r := New(table)
	r.Open(table)
	lists := make([]pslite.Keys, 12) // more than are remembered
	for i := range lists {
		for k := range uint64(100 + i) {
			lists[i] = pslite.AppendKeys(lists[i], []uint64{13*k + uint64(i)})
		}
	}
	check := func(displaced int) {
		t.Helper()
		for range 3 {
			for i, l := range lists {
				if got := r.touches(l); got != (i == displaced) {
					t.Fatalf("list %d touches a displaced key: %v", i, got)
				}
			}
			for range 2 {
				if r.touches(lists[0]) != (displaced == 0) {
					t.Fatal("a list that came before is judged otherwise")
				}
			}
		}
	}
	check(-1)
	table.Set([]plan.Range{{Keys: plan.One(657), Owner: 1}})
	check(7)
	table.Set([]plan.Range{{Keys: plan.One(657), Owner: plan.Home}, {Keys: plan.One(650), Owner: 1}})
	check(0)
	other := NewTable(2)
	other.Set([]plan.Range{{Keys: plan.One(653), Owner: 1}})
	other.version = table.version
	r.Open(other)
	check(3)
}

// Keys that came home again leave an empty table.
func TestTableEmpties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	table := NewTable(4)
	var keys []plan.Range
	for range 5000 {
		keys = append(keys, plan.Range{Keys: plan.One(rng.Uint64()), Owner: rng.Int32N(4)})
	}
	table.Set(keys)
	for i := range keys {
		keys[i].Owner = plan.Home
	}
	for part := range slices.Chunk(keys, 100) {
		table.Set(part)
	}
	if !table.Empty() || table.Touches(pslite.AppendKeys(nil, []uint64{keys[0].First})) {
		n, r := table.Displaced()
		t.Errorf("%d keys and %d ranges are left", n, r)
	}
}

// A large table that changes all the time says what a Go map says.
func TestTableAgainstMap(t *testing.T) {
	const servers = 5
	rng := rand.New(rand.NewPCG(1, 7))
	table, want := NewTable(servers), map[uint64]int32{}
	keys := make([]uint64, 60_000)
	for i := range keys {
		keys[i] = rng.Uint64()
		if i%2 == 0 { // in the order of small numbers, and all in a few of them
			keys[i] = uint64(i) << (16 * (i / 2 % 4))
		}
	}
	slices.Sort(keys)
	frame := pslite.AppendKeys(nil, keys)
	for round := range 12 {
		var changes []plan.Range
		for range 25_000 {
			k := keys[rng.IntN(len(keys))]
			owner := rng.Int32N(servers+1) - 1
			if round > 8 && rng.IntN(8) > 0 { // nearly all come home
				owner = plan.Home
			}
			changes = append(changes, plan.Range{Keys: plan.One(k), Owner: owner})
			if owner == plan.Home || owner == plan.HomeOf(k, servers) {
				delete(want, k)
			} else {
				want[k] = owner
			}
		}
		table.Set(changes)
		if n, _ := table.Displaced(); n != len(want) {
			t.Fatalf("round %d: %d keys are displaced, want %d", round, n, len(want))
		}
		for i, got := range table.AppendOwners(nil, frame) {
			owner, ok := want[keys[i]]
			if !ok {
				owner = plan.HomeOf(keys[i], servers)
			}
			if got != owner || table.Owner(keys[i]) != owner {
				t.Fatalf("round %d: key %d has owner %d, one by one %d, want %d", round, keys[i], got, table.Owner(keys[i]), owner)
			}
			if at := frame[8*i : 8*i+8]; ok != table.Touches(at) {
				t.Fatalf("round %d: key %d is displaced: %v, the table says %v", round, keys[i], ok, !ok)
			}
		}
		seen := 0
		for r := range table.All {
			if want[r.First] != r.Owner || r.Len() != 1 {
				t.Fatalf("round %d: the list has %v, want owner %d", round, r, want[r.First])
			}
			seen++
		}
		if seen != len(want) {
			t.Fatalf("round %d: %d keys are listed, want %d", round, seen, len(want))
		}
	}
}
