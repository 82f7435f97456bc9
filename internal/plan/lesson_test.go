package plan

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// site is a host in a model of moves: every host holds the keys, then it is
// recorded, then one host after the other lets go, in any order and with any of
// them dead meanwhile.
type site struct {
	owners map[uint64]int32
	held   map[uint64]bool
}

// However far moves have come when the store is lost, what the hosts teach gives
// owners that all who let go of a key agree with; as long as that is not certain
// the store waits.
func TestMergeOfLessons(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const keys, servers = 6, 3
		hosts := rapid.IntRange(1, 4).Draw(t, "hosts")
		sites := make([]site, hosts)
		for i := range sites {
			sites[i] = site{map[uint64]int32{}, map[uint64]bool{}}
		}
		// moving is a key's move: its new owner, and whether it was recorded.
		type moving struct {
			to       int32
			recorded bool
		}
		moves := map[uint64]*moving{}
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			k := rapid.Uint64Range(0, keys-1).Draw(t, "key")
			x := &sites[rapid.IntRange(0, hosts-1).Draw(t, "host")]
			m := moves[k]
			if m == nil {
				m = &moving{to: rapid.Int32Range(0, servers-1).Draw(t, "to")}
				moves[k] = m
			}
			all := true
			for i := range sites {
				all = all && sites[i].held[k]
			}
			switch {
			case !m.recorded && !x.held[k]:
				x.held[k] = true
			case !m.recorded && all:
				m.recorded = true
			case m.recorded && x.held[k]:
				x.owners[k] = m.to
				delete(x.held, k)
			}
			gone := m.recorded
			for i := range sites {
				gone = gone && !sites[i].held[k]
			}
			if gone {
				delete(moves, k)
			}
		}
		heard := rapid.SliceOfNDistinct(rapid.IntRange(0, hosts-1), 1, hosts, rapid.ID).Draw(t, "heard")
		var lessons []Lesson
		var names []string
		for i := range sites {
			names = append(names, fmt.Sprint("h", i))
		}
		for _, i := range heard {
			x := Lesson{Sites: []string{names[i]}, AllSites: names}
			for k, owner := range sites[i].owners {
				x.Owners.Assign(One(k), owner, servers)
			}
			for k := range sites[i].held {
				x.Held.Set(Range{Keys: One(k)})
			}
			lessons = append(lessons, x)
		}
		owners, waits := Merge(lessons, servers)
		if len(waits) > 0 {
			if len(heard) == hosts {
				t.Fatalf("all have taught, and it waits for %v", waits)
			}
			return
		}
		for k := range uint64(keys) {
			for i := range sites {
				if sites[i].held[k] {
					continue // its requests wait, and it is told
				}
				want := HomeOf(k, servers)
				if o, ok := sites[i].owners[k]; ok {
					want = o
				}
				got := owners.Owner(k)
				if got == Home {
					got = HomeOf(k, servers)
				}
				if got != want {
					t.Fatalf("key %d belongs to %d by the lessons of %v, host %d has let go of it to %d", k, got, heard, i, want)
				}
			}
		}
	})
}
