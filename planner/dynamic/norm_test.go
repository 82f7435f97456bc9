package dynamic

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What moves change is what it would be if all were computed from the loads, to the
// last bit, and the cheapest machine is the first of the lowest price that may own
// items.
func TestNormAfterMovesIsThatOfTheLoads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		machines := rapid.IntRange(1, 9).Draw(t, "machines")
		o := Options{Machines: machines, Barred: make([]bool, machines)}
		if rapid.Bool().Draw(t, "links differ") {
			o.Speed = rapid.SliceOfN(rapid.Float64Range(0.5, 2), machines, machines).Draw(t, "speed")
		}
		for i := range machines - 1 {
			o.Barred[i] = rapid.Bool().Draw(t, "barred")
		}
		l := NewLocality(o)
		load := rapid.Float64Range(0, 100)
		for i := range l.loads {
			l.loads[i] = load.Draw(t, "load")
		}
		l.mass = 1
		l.norm.reset(l)
		machine := rapid.Int32Range(0, int32(machines)-1)
		for range rapid.IntRange(1, 20).Draw(t, "moves") {
			a, b := machine.Draw(t, "from"), machine.Draw(t, "to")
			l.loads[a], l.loads[b] = load.Draw(t, "load"), load.Draw(t, "load")
			l.norm.change(l, a, b)
			got, want := &l.norm, &norm{}
			want.reset(l)
			if got.value != want.value || got.unit != want.unit || got.cheapest != want.cheapest || !slices.Equal(got.sum[1:], want.sum[1:]) {
				t.Fatalf("value %v, cheapest %d; want %v, %d", got.value, got.cheapest, want.value, want.cheapest)
			}
			for i := range int32(machines) {
				if !o.Barred[i] && l.norm.price(l, i) < l.norm.price(l, got.cheapest) {
					t.Fatalf("machine %d is cheaper than %d", i, got.cheapest)
				}
			}
			if o.Barred[got.cheapest] {
				t.Fatalf("machine %d may own nothing", got.cheapest)
			}
		}
	})
}

// A plan moves items between as few pairs of machines as it is given, those whose items
// are used most, and all that go between them.
func TestPlansHaveAsManyGroupsAsTheyMay(t *testing.T) {
	const machines, each = 6, 5
	it, e := &Items{}, &Epoch{Steps: 20, MaxGroups: 2}
	for pair := range machines - 1 { // items at home on 0, used by one other machine each
		for range each {
			e.Uses = append(e.Uses, Use{Item: int32(it.Len()), Machine: int32(pair + 1), Bytes: float32(int(20000) << (2 * pair))})
			it.Owner, it.Home, it.Size = append(it.Owner, 0), append(it.Home, 0), append(it.Size, 100)
		}
	}
	l := NewLocality(Options{Machines: machines})
	moves, err := l.Plan(it, e)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range moves {
		if m.To != machines-1 && m.To != machines-2 {
			t.Errorf("item %d goes to %d, items of others are used more", m.Item, m.To)
		}
	}
	if len(moves) != 2*each || l.Groups() != 2 || l.LeftOut() != (machines-3)*each {
		t.Errorf("%d moves in %d groups, %d left out; want %d in 2, %d", len(moves), l.Groups(), l.LeftOut(), 2*each, (machines-3)*each)
	}
	for _, m := range moves {
		it.Owner[m.Item] = m.To
	}
	if _, err := l.Plan(it, &Epoch{Steps: 20, Uses: e.Uses}); err != nil || l.Groups() != machines-3 || l.LeftOut() != 0 {
		t.Errorf("without a bound the next plan has %d groups, %d are left out: %v", l.Groups(), l.LeftOut(), err)
	}
}

// An item that a machine has turned away from is that of the other one which uses it, as
// soon as that is said, and loads are those of the other one's uses.
func TestItemsFollowWhoStays(t *testing.T) {
	it := &Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{100}}
	l := NewLocality(Options{Machines: 2})
	both := []Use{{Item: 0, Machine: 0, Bytes: 40000}, {Item: 0, Machine: 1, Bytes: 40000}}
	for range 3 {
		if moves, err := l.Plan(it, &Epoch{Steps: 20, Uses: both}); err != nil || len(moves) > 0 {
			t.Fatalf("an item that both use: %v, %v", moves, err)
		}
	}
	// What 1 uses was not seen again: it is taken to go on.
	e := &Epoch{Steps: 1, Uses: both[1:], Heard: []bool{true, false}}
	if moves, err := l.Plan(it, e); err != nil || len(moves) > 0 {
		t.Fatalf("an item that one did not use for a step: %v, %v", moves, err)
	}
	e.Left = []Departure{{Item: 0, Machine: 0}}
	moves, err := l.Plan(it, e)
	if err != nil || len(moves) != 1 || moves[0].To != 1 {
		t.Fatalf("an item that its owner has turned away from: %v, %v", moves, err)
	}
	if loads := l.Loads(); loads[0] > 1e-3 || loads[1] > 1e-3 {
		t.Errorf("with the item where it is used the machines move %v bytes a step", loads)
	}
	e.Left = []Departure{{Item: 0, Machine: 1}}
	e.Uses = nil
	if _, err := l.Plan(it, e); err != nil || l.rates.part(0, 1) != 0 || l.rates.seen[0] != (sight{}) {
		t.Errorf("an item that nobody uses: part %v, %+v, %v", l.rates.part(0, 1), l.rates.seen[0], err)
	}
}
