package dynamic

import (
	"math"
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
			sum, total := 0.0, 0.0 // one machine after the other
			for i := range l.loads {
				v := l.loads[i] * l.speed[i]
				sum, total = sum+math.Pow(v, power), total+v
			}
			if math.Abs(got.sum.all()-sum) > 1e-12*sum || math.Abs(got.total.all()-total) > 1e-12*total {
				t.Fatalf("sums are %v and %v, want %v and %v", got.sum.all(), got.total.all(), sum, total)
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
