package aggregate

import (
	"testing"

	"github.com/psidecar/psidecar/proxy/relay"
)

// What waits is charged with its key lists, which stay until the last push of a sum is written.
func TestKeyListsAreCharged(t *testing.T) {
	w := newWorld(t, 1, 2, 0, false)
	for _, k := range w.workers {
		k.unsent = lowWater + 1
	}
	for _, k := range w.workers {
		w.pushes(k, 0)
		w.show(k)
	}
	n := len(lists[0])
	sum, list := row*n, 8*n+n // keys, and whether they stay
	if w.lens {
		list += 4 * n
	}
	charged := func(when string, want int) {
		t.Helper()
		if w.group.bytes != want {
			w.fail("%s: %d bytes are charged, want %d", when, w.group.bytes, want)
		}
	}
	charged("while the links are busy", sum+list)
	for _, k := range w.workers {
		k.unsent = 0
	}
	w.tick()
	for _, k := range w.workers {
		w.due(k)
		if k.out != nil {
			k.link, k.out = append(k.link, k.out...), nil
			k.queue.Written()
		}
	}
	charged("when the sum is written", list)
	w.carry()
	charged("at the end", 0)
	if c := w.group.figures(); c.Carried != 1 || c.Sums != 1 {
		w.fail("%+v", c)
	}
}

// What sums took of the memory of all connections is there again once they are answered.
func TestSumsGiveBackTheirMemory(t *testing.T) {
	const most = 1 << 20
	w := newWorld(t, 1, 3, 0, false)
	memory := relay.NewMemory(2 * most)
	w.table.Bound(memory)
	w.together()
	if memory.TryReserve(most) {
		w.fail("what waits is not charged")
	}
	w.settle()
	w.check(true)
	if !memory.TryReserve(most) {
		w.fail("some of the memory of sums was not released")
	}
}
