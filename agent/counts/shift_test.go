package counts

import (
	"slices"
	"testing"
)

// A worker that turns to other keys is noticed within a few hundred uses, and the
// window has nothing from before; one that uses new keys all the time is not, once
// that is known to be usual.
func TestShiftedWorkerIsNoticed(t *testing.T) {
	j := windowed(1 << 16)
	step := int32(0)
	steps := func(n int, keys func(i int) uint64) {
		for range n {
			var list []uint64
			for i := range 100 {
				list = append(list, keys(i))
			}
			slices.Sort(list)
			use(j, 0, step, list)
			step++
		}
	}
	era := func(base uint64) func(int) uint64 { return func(i int) uint64 { return base + uint64(i) } }
	if j.Shifted() {
		t.Error("nothing was used, and it is said to have shifted")
	}
	steps(5, era(1000))
	if !j.Shifted() || !j.TakeWindow(1<<16).Shifted {
		t.Error("the first window is no shift")
	}
	steps(5, era(1000))
	if j.Shifted() {
		t.Error("the same keys as before are a shift")
	}
	if steps(3, era(5000)); !j.Shifted() {
		t.Fatal("300 pulls and pushes of other keys are no shift")
	}
	steps(2, era(5000))
	w := j.TakeWindow(1 << 16)
	if !w.Shifted || len(w.Keys) != 100 || w.Keys[0] != 5000 || w.LeftOut < 1000 || w.Workers[0].Steps < 3 {
		t.Errorf("the window has %d keys from %d, left out %d", len(w.Keys), w.Keys[0], w.LeftOut)
	}
	if steps(5, era(5000)); j.Shifted() {
		t.Error("it shifted once and is said to have twice")
	}
	noticed := 0
	for n := range 40 {
		steps(5, func(i int) uint64 { return uint64(step)*100 + uint64(i) + 1<<20 })
		if n >= 20 && j.Shifted() {
			noticed++
		}
		j.TakeWindow(1 << 16)
	}
	if noticed > 0 {
		t.Errorf("a worker that always uses new keys shifts %d times of 20", noticed)
	}
}

// A window that was full when a worker shifted has what came after.
func TestShiftedWhenFull(t *testing.T) {
	j := windowed(400)
	keys := func(base uint64) (list []uint64) {
		for i := range uint64(100) {
			list = append(list, base+i)
		}
		return list
	}
	use(j, 0, 0, keys(0))
	j.TakeWindow(400)
	for step := range int32(10) {
		use(j, 0, 1+step, keys(0))
	}
	for step := range int32(4) {
		use(j, 0, 20+step, keys(7000))
	}
	if w := j.TakeWindow(400); !w.Shifted || len(w.Keys) != 100 || w.Keys[0] != 7000 {
		t.Errorf("%d keys from %d", len(w.Keys), w.Keys[0])
	}
}
