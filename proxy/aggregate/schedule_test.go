package aggregate

import (
	"math/rand/v2"
	"testing"
	"time"
)

// step does something.
func (w *world) step() {
	k := w.workers[w.rng.IntN(len(w.workers))]
	switch w.rng.IntN(12) {
	case 0, 1:
		if w.rounds == nil {
			w.want(k)
		}
	case 2, 3:
		if !k.down || w.rng.IntN(10) == 0 {
			w.show(k)
		}
	case 4:
		w.due(k)
	case 5, 6:
		w.write(k)
	case 7, 8:
		w.arrive(k)
	case 9:
		w.answer(k)
	case 10:
		w.now = w.now.Add(time.Duration(w.rng.IntN(100)) * time.Millisecond)
		w.tick()
	case 11:
		if w.breaks == 0 || w.rng.IntN(6) > 0 {
			return
		}
		w.breaks--
		if f := w.group.flying; f != nil && f.state == isChosen && w.rng.IntN(2) == 0 {
			for _, o := range w.workers {
				if o.queue == f.carrier.queue {
					k = o
				}
			}
		}
		if w.rng.IntN(3) > 0 {
			if !k.down {
				w.cut(k)
			}
			return
		}
		w.note("the server's connection to worker %d breaks", k.id)
		k.hearer.Close()
		w.listen(k)
	}
}

func (w *world) tick() {
	w.group.mu.Lock()
	defer w.group.mu.Unlock()
	w.group.tick(w.now)
}

// settle has everything happen that still can.
func (w *world) settle() { w.settleFor(400) }

func (w *world) settleFor(rounds int) {
	for range rounds {
		for _, k := range w.workers {
			w.show(k)
			w.due(k)
			w.write(k)
			w.arrive(k)
			w.answer(k)
		}
		for _, reply := range w.held {
			reply()
		}
		w.held = nil
		w.now = w.now.Add(50 * time.Millisecond)
		w.tick()
	}
}

// check looks whether all that nobody cut off was applied and answered, and nothing is
// kept.
func (w *world) check(whole bool) {
	for _, k := range w.workers {
		if len(k.queue.items) > 0 || len(k.messages) > 0 {
			w.fail("worker %d still has %d pushes that wait, %d messages that were not taken", k.id, len(k.queue.items), len(k.messages))
		}
		for _, m := range k.mine {
			n := w.applied(m)
			if whole && !m.done || !w.isWhole(m) && (whole || n > 0 && !m.cut) {
				w.fail("worker %d ts %d: heard %v, applied to %d of %d keys", k.id, m.ts, m.done, n, len(lists[m.list]))
			}
		}
	}
	if g := w.group; g.bytes != 0 || len(g.open)+len(g.sent) > 0 || g.flying != nil && g.flying.state == isChosen {
		w.fail("the group keeps %d bytes, %d open and %d sent batches", g.bytes, len(g.open), len(g.sent))
	}
}

// In every order in which pushes, links and answers can move on, each push is applied
// once, heard of when it was, and seen by its worker's next pull; where connections
// break, each of its values once or never, and only a push whose connection broke in part.
func TestSchedules(t *testing.T) {
	runs := uint64(1500)
	if testing.Short() {
		runs = 300
	}
	var all Counts
	for seed := range runs {
		rng := rand.New(rand.NewPCG(seed, 6))
		w := newUntested(t, seed, 2+rng.IntN(3), []time.Duration{0, 0, 30 * time.Millisecond}[rng.IntN(3)], rng.IntN(2) == 0, rng.IntN(2) == 0)
		if rng.IntN(2) == 0 {
			w.breaks = 1 + rng.IntN(8)
		}
		whole := w.breaks == 0
		for range 300 {
			w.step()
		}
		w.settle()
		w.check(whole)
		all.addCounts(w.group.figures())
	}
	t.Logf("%+v", all)
	if all.Sums == 0 || all.Carried == 0 || all.Partial == 0 || all.Lost == 0 || all.Alone == 0 || all.Passed[First] == 0 {
		t.Errorf("%+v: not all has been tried", all)
	}
}

// Where a carrier's connection ends after all of the sum has left, and no answer comes, nobody
// waits for as long as a server may take.
func TestCarrierEndsBeforeTheAnswer(t *testing.T) {
	w := newWorld(t, 1, 2, 0, false)
	w.group.opts.AnswerWithin = time.Hour
	first, second := w.workers[0], w.workers[1]
	first.unsent = lowWater + 1
	for _, k := range w.workers {
		w.pushes(k, 0)
		w.show(k)
	}
	first.unsent = 0
	w.tick()
	w.due(first)
	w.write(first)
	w.arrive(first)
	w.tick()
	if len(w.group.sent) != 1 || w.group.sent[0].left.IsZero() {
		w.fail("the sum has not left")
	}
	w.cut(first)
	w.tick()
	w.now = w.now.Add(afterEnd)
	w.tick()
	if second.queue.failed == nil {
		w.fail("the carried push still waits for an answer")
	}
	w.settle()
	w.check(false)
}

// A batch of which every connection ends before it goes, its carrier's last, is not kept.
func TestAllConnectionsOfABatchEnd(t *testing.T) {
	w := newWorld(t, 1, 2, 0, false)
	first, second := w.workers[0], w.workers[1]
	first.unsent = lowWater + 1
	for _, k := range w.workers {
		w.pushes(k, 0)
		w.show(k)
	}
	first.unsent = 0
	w.tick()
	if f := w.group.flying; f == nil || f.state != isChosen || f.carrier.queue != first.queue || len(f.items) != 2 {
		w.fail("the first push does not carry the second")
	}
	w.cut(second)
	w.cut(first)
	w.check(false)
}
