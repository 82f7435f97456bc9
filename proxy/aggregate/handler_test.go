package aggregate

import (
	"math/rand/v2"
	"testing"
	"time"
)

// together has all workers push the same keys while the first one's link is busy.
func (w *world) together() {
	w.workers[0].unsent = lowWater + 1
	for _, k := range w.workers {
		w.pushes(k, 0)
		w.show(k)
	}
	w.workers[0].unsent = 0
	w.tick()
}

// The first push goes alone while others wait. What waits meanwhile is summed once the server
// has answered it.
func TestFirstPushGoesAlone(t *testing.T) {
	w := newUntested(t, 1, 3, 0, false, false)
	w.together()
	w.due(w.workers[0])
	w.write(w.workers[0])
	w.workers[0].unsent = 0
	w.tick()
	for _, k := range w.workers[1:] {
		if w.due(k); k.out != nil {
			w.fail("worker %d's push does not wait for the answer to the first", k.id)
		}
	}
	w.arrive(w.workers[0])
	if n := w.applied(w.workers[1].mine[0]); n > 0 {
		w.fail("the first push has values of another")
	}
	w.carry()
	w.check(true)
	if c := w.group.figures(); c.Sums != 1 || c.Carried != 1 {
		w.fail("%+v, want a sum that carries a push", c)
	}
	w.together()
	w.carry()
	w.check(true)
	if c := w.group.figures(); c.Sums != 2 || c.Carried != 3 {
		w.fail("%+v, want another that carries two", c)
	}
}

// A server that waits for all workers' pushes before it answers holds up a job for as
// long as an answer is waited for, once, and every push goes with its own values.
func TestSynchronousServer(t *testing.T) {
	w := newUntested(t, 1, 3, time.Hour, false, false)
	w.waits = true
	for _, k := range w.workers {
		w.pushes(k, 0)
	}
	for range 100 {
		for _, k := range w.workers {
			w.show(k)
			w.write(k)
			w.arrive(k)
			for _, m := range k.mine {
				if m.there && !w.isWhole(m) {
					w.fail("worker %d's push has come without its values", k.id)
				}
			}
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

// meetRound is a push to a server that answers pushes of a list together.
func (w *world) meetRound(k *worker, list int, reply func()) {
	if w.rounds[list] == nil {
		w.rounds[list] = map[*worker][]func(){}
	}
	of := w.rounds[list]
	for of[k] = append(of[k], reply); len(of) == len(w.workers); {
		for _, o := range w.workers {
			of[o][0]()
			if of[o] = of[o][1:]; len(of[o]) == 0 {
				delete(of, o)
			}
		}
	}
}

// Workers may push ahead of each other, without waiting for answers, to a server that answers the pushes of
// a list together: nothing is ever summed, and all is answered.
func TestSynchronousServerWithWorkersThatPushAhead(t *testing.T) {
	off := 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 8))
		w := newUntested(t, seed, 2+rng.IntN(2), []time.Duration{0, 30 * time.Millisecond}[rng.IntN(2)], false, false)
		w.rounds = map[int]map[*worker][]func(){}
		ahead := 1 + rng.IntN(4)
		var order []int
		for range 60 / len(w.workers) {
			order = append(order, rng.IntN(3))
		}
		next := map[*worker]int{}
		want := func(k *worker) {
			waits := 0
			for _, m := range k.mine {
				if !m.done {
					waits++
				}
			}
			if n := next[k]; n < len(order) && waits < ahead {
				next[k]++
				w.pushes(k, order[n])
			}
		}
		for range 600 {
			want(w.workers[w.rng.IntN(len(w.workers))])
			w.step()
		}
		for range 20 * len(order) {
			for _, k := range w.workers {
				want(k)
			}
			w.settleFor(2)
		}
		w.check(true)
		if c := w.group.figures(); c.Sums > 0 {
			w.fail("%+v: pushes are summed", c)
		}
		if w.group.off == Sums {
			off++
		}
	}
	if off < 100 {
		t.Errorf("the server was found to be synchronous in %d of 500 runs", off)
	}
}

// A sum is never overtaken: however long the server stands still with it, the pushes that it carries,
// and the pulls after them, go once it is answered.
func TestServerStandsStill(t *testing.T) {
	w := newWorld(t, 1, 3, 0, false)
	w.together()
	first := w.workers[0]
	w.due(first)
	w.write(first)
	first.link, first.unsent = first.link[:1], 0
	stands := func() {
		for _, k := range w.workers[1:] {
			k.messages = append(k.messages, w.pull(k, 0))
			w.show(k)
			if w.write(k); len(k.link) > 0 {
				w.fail("worker %d has sent something before the sum was answered", k.id)
			}
		}
		w.now = w.now.Add(time.Second)
		w.tick()
	}
	for range 3600 {
		stands()
	}
	w.arrive(first)
	stands() // it has arrived, and that is not known here
	w.settleFor(4000)
	w.check(true)
	if c := w.group.figures(); c.Sums != 1 || c.Carried != 2 || c.Lost > 0 || w.group.off != "" {
		w.fail("%+v, off %q", c, w.group.off)
	}
}

// A server's next process may be another program.
func TestAnotherServerIsTestedAgain(t *testing.T) {
	w := newWorld(t, 1, 2, 0, false)
	w.workers[1].hearer.Close()
	w.listen(w.workers[1])
	w.together()
	w.due(w.workers[0])
	if w.group.alone == nil {
		w.fail("a sum goes at once")
	}
}
