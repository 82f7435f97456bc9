package dynamic

import "testing"

// A machine uses an item when its turn comes, so many times in a row; the item's
// value is long (a use costs about as much as a move) or short (less).
func TestAccessInTurnsByCostOfAMove(t *testing.T) {
	for name, tc := range map[string]struct {
		machines    int32
		inARow      int
		stay, move  float64
		least, most int // moves in 120 uses, the item being machine 0's
	}{
		"its owner's":                   {1, 1, 264, 280, 0, 0},
		"two machines' in turns of one": {2, 1, 264, 280, 0, 1},
		"two machines' in turns of two": {2, 2, 264, 280, 57, 60},
		"three in turns of ten, short":  {3, 10, 16, 28, 10, 12},
		"two in turns of two, short":    {2, 2, 12, 28, 0, 2},
	} {
		it := &Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{12}}
		l := NewLocality(Options{Machines: 4})
		moves := 0
		for i := range 120 {
			by := int32(i/tc.inARow) % tc.machines
			if l.Access(it, 0, by, tc.stay, tc.move) {
				it.Owner[0] = by
				moves++
			}
			if i%20 == 19 {
				if _, err := l.Plan(it, &Epoch{Steps: 10}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if moves < tc.least || moves > tc.most {
			t.Errorf("%s: %d moves, want %d to %d", name, moves, tc.least, tc.most)
		}
	}
	// Nobody has used it yet: it is the first one's. A machine without a server
	// cannot have it.
	l := NewLocality(Options{Machines: 3, Barred: []bool{false, false, true}})
	it := &Items{Owner: []int32{0, 0}, Home: []int32{0, 0}, Size: []float32{12, 12}}
	if !l.Access(it, 0, 1, 1, 100) || l.Access(it, 1, 2, 100, 1) {
		t.Error("a new item does not go to its first user, or goes where there is no server")
	}
}

// What was handed over is where it is in the loads, and is not planned elsewhere
// by what came before.
func TestAccessThenPlan(t *testing.T) {
	l := NewLocality(Options{Machines: 2})
	it := &Items{Owner: []int32{0}, Home: []int32{0}, Size: []float32{12}}
	uses := func(machine int32) *Epoch { return &Epoch{Steps: 10, Uses: []Use{{0, machine, 500}}} }
	if moves, err := l.Plan(it, uses(0)); err != nil || len(moves) > 0 {
		t.Fatalf("%v, %v", moves, err)
	}
	if !l.Access(it, 0, 1, 20, 28) {
		t.Fatal("the item stays")
	}
	it.Owner[0] = 1
	if got := l.Loads(); got[0] < 40 || got[1] != got[0] { // what is known says that machine 0 uses it
		t.Errorf("loads %v", got)
	}
	if moves, err := l.Plan(it, uses(0)); err != nil || len(moves) > 0 {
		t.Errorf("it is planned back at once: %v, %v", moves, err)
	}
	if moves, err := l.Plan(it, uses(0)); err != nil || len(moves) != 1 {
		t.Errorf("it is not planned back though only machine 0 uses it: %v, %v", moves, err)
	}
}
