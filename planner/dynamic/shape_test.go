package dynamic

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// step is an epoch of ten steps in which machines use items for so many bytes.
func step(uses ...Use) *Epoch { return &Epoch{Steps: 10, Uses: uses} }

// What other jobs move at a machine counts: a key that two machines use as much goes
// to the one whose link has room.
func TestLocalityBesideOthers(t *testing.T) {
	for busy, want := range map[int]int32{1: 2, 2: 1} {
		l := NewLocality(Options{Machines: 3})
		it := &Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{12}}
		e := step(Use{0, 1, 1000}, Use{0, 2, 1000})
		e.Base = make([]float64, 3)
		e.Base[busy] = 500
		moves, err := l.Plan(it, e)
		if err != nil || !slices.Equal(moves, []Move{{0, want}}) {
			t.Errorf("machine %d is busy: %v, %v; want a move to %d", busy, moves, err, want)
		}
	}
}

// Machines that come, and links that become slow, change what is planned from then on
// and not what is known: a strategy that is told of them plans as one that knew them
// from the start.
func TestReshapeChangesPlansAndNotKnowledge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const items, few, many = 20, 3, 5
		speed := []float64{1, 1, 1, 0.25, 1}
		grown, before := NewLocality(Options{Machines: few}), NewLocality(Options{Machines: many, Speed: speed})
		a, b := drawItems(t, items, few), &Items{}
		b.Owner, b.Home, b.Size = slices.Clone(a.Owner), slices.Clone(a.Home), a.Size
		for range 3 {
			e := step(drawUses(t, items, few)...)
			for _, s := range []struct {
				l  *Locality
				it *Items
			}{{grown, a}, {before, b}} {
				s.l.o.MaxMoves = 0 // look, and leave all where it is
				require.Value(s.l.Plan(s.it, e))(t)
			}
		}
		require.NoError(t, grown.Reshape(Options{Machines: many, Speed: speed}))
		grown.o.MaxMoves, before.o.MaxMoves = math.MaxInt, math.MaxInt
		e := step(drawUses(t, items, many)...)
		got, err := grown.Plan(a, e)
		want, err2 := before.Plan(b, e)
		if err != nil || err2 != nil || !slices.Equal(got, want) {
			t.Fatalf("%v, %v; want %v, %v", got, err, want, err2)
		}
	})
	if err := NewLocality(Options{Machines: 3}).Reshape(Options{Machines: 2}); err == nil {
		t.Error("machines are taken away")
	}
}

// A strategy that forgets items plans for the others as before, and its loads are
// theirs.
func TestKeepPlansForTheOtherItemsAsBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const items, k = 30, 4
		l, it := NewLocality(Options{Machines: k}), drawItems(t, items, k)
		for range 3 {
			moves := require.Value(l.Plan(it, step(drawUses(t, items, k)...)))(t)
			for _, m := range moves {
				it.Owner[m.Item] = m.To
			}
		}
		require.Value(l.Plan(it, step(drawUses(t, items, k)...)))(t)
		kept := drawSet(t, items)
		type known struct {
			owner int32
			users []user
		}
		var want []known
		for _, item := range kept {
			want = append(want, known{l.owner[item], slices.Clone(l.rates.of(item))})
		}
		l.Keep(kept)
		loads := make([]float64, k)
		for i, w := range want {
			sum := float32(0)
			for _, u := range w.users {
				sum += u.rate
			}
			w.users = slices.DeleteFunc(w.users, func(u user) bool { return u.rate <= least*sum })
			if l.owner[i] != w.owner || !slices.Equal(l.rates.of(int32(i)), w.users) {
				t.Fatalf("item %d, now %d: owner %d, users %v; want %v", kept[i], i, l.owner[i], l.rates.of(int32(i)), w)
			}
			for _, u := range w.users {
				if u.machine != w.owner {
					loads[w.owner] += float64(u.rate)
					loads[u.machine] += float64(u.rate)
				}
			}
		}
		for i := range loads {
			if math.Abs(loads[i]-l.loads[i]) > 1e-6*(1+loads[i]) {
				t.Fatalf("machine %d has %v, want %v", i, l.loads[i], loads[i])
			}
		}
		small := &Items{}
		for _, item := range kept {
			small.Owner, small.Home, small.Size = append(small.Owner, it.Owner[item]), append(small.Home, it.Home[item]), append(small.Size, it.Size[item])
		}
		small.Owner, small.Home, small.Size = append(small.Owner, 0), append(small.Home, 0), append(small.Size, 8) // and a new one
		require.Value(l.Plan(small, step(Use{int32(len(kept)), 1, 100})))(t)
	})
}
