package aggregate

import (
	"math/rand/v2"
	"testing"
	"time"
)

// In every order in which pushes, links and answers can move on, each push is applied
// once, heard of when it was, and seen by its worker's next pull; where connections
// break, once or never.
func TestSchedules(t *testing.T) {
	runs := uint64(4000)
	if testing.Short() {
		runs = 300
	}
	var all Counts
	for seed := range runs {
		rng := rand.New(rand.NewPCG(seed, 6))
		w := newWorld(t, seed, 2+rng.IntN(3), []time.Duration{0, 0, 30 * time.Millisecond}[rng.IntN(3)])
		if rng.IntN(2) == 0 {
			w.breaks = 1 + rng.IntN(8)
		}
		whole := w.breaks == 0
		for range 300 {
			w.step()
		}
		w.settle()
		w.check(whole)
		all.add(w.group.figures())
	}
	t.Logf("%+v", all)
	if all.Sums == 0 || all.Carried < all.Sums || all.Lost == 0 || all.Alone == 0 {
		t.Errorf("%+v: not all has been tried", all)
	}
}

// A server that waits for all workers' pushes before it answers holds up a job for as
// long as an answer is waited for, once.
func TestSynchronousServer(t *testing.T) {
	w := newWorld(t, 1, 3, time.Hour)
	w.waits = true
	for _, k := range w.workers {
		m := w.push(k, 0, w.next[0])
		w.next[0]++
		k.mine, k.messages = append(k.mine, m), append(k.messages, m)
	}
	for range 100 {
		for _, k := range w.workers {
			w.show(k)
			w.write(k)
			w.arrive(k)
		}
		if len(w.held) == len(w.workers) {
			break
		}
		w.now = w.now.Add(50 * time.Millisecond)
		w.tick()
	}
	if len(w.held) != len(w.workers) || w.group.off != Sums {
		w.fail("%d of %d pushes are there, the group is off for %q", len(w.held), len(w.workers), w.group.off)
	}
	w.settle()
	w.check(true)
}
