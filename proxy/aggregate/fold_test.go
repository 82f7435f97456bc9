package aggregate

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// drawBatch returns a batch of random keys with 32-bit integers, and the integers of each key.
func drawBatch(t *rapid.T, name string, withLens bool) (*batch, map[uint64][]uint32) {
	keys := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 40), 1, 30, rapid.ID[uint64]).Draw(t, name+" keys")
	slices.Sort(keys)
	b := &batch{subject: subject{kind: pslite.Int32, keys: pslite.AppendKeys(nil, keys)}}
	each := rapid.IntRange(1, 3).Draw(t, name+" values of a key")
	of, stay := map[uint64][]uint32{}, make([]bool, len(keys))
	var lens []int32
	for i, key := range keys {
		n := each
		if withLens {
			// Mostly the same in both batches.
			if n = int(key % 4); rapid.IntRange(0, 9).Draw(t, "other length") == 0 {
				n = 5
			}
		}
		lens = append(lens, int32(n))
		of[key] = rapid.SliceOfN(rapid.Uint32(), n, n).Draw(t, name+" values")
		for _, v := range of[key] {
			b.sum = binary.LittleEndian.AppendUint32(b.sum, v)
		}
		stay[i] = rapid.IntRange(0, 5).Draw(t, name+" stay") == 0
	}
	b.size = len(b.sum)
	if withLens {
		b.lens = pslite.AppendLens(nil, lens)
	}
	if slices.Contains(stay, true) {
		b.stay = stay
	}
	b.layOut(4)
	return b, of
}

// valuesOf returns a batch's integers by key.
func valuesOf(b *batch) map[uint64][]uint32 {
	of := map[uint64][]uint32{}
	for r := (rows{s: &b.subject}); r.more(); r.next() {
		of[r.key()] = []uint32{}
		for at := r.at; at < r.at+r.length(); at += 4 {
			of[r.key()] = append(of[r.key()], binary.LittleEndian.Uint32(b.sum[at:]))
		}
	}
	return of
}

// What is folded is what a map of all keys says: of each key that both have, and that stays in
// neither, one has the sum and the other zeros.
func TestFoldIsThatOfKeyByKey(t *testing.T) {
	add, _ := adderOf(pslite.Int32, "")
	rapid.Check(t, func(t *rapid.T) {
		withLens := rapid.Bool().Draw(t, "lens")
		b, into := drawBatch(t, "b", withLens)
		o, from := drawBatch(t, "o", withLens)
		if b.row == 0 || o.row == 0 {
			t.Fatal("the values are not laid out by keys")
		}
		stays := func(b *batch, key uint64) bool {
			at, _ := slices.BinarySearch(pslite.Keys(b.keys).AppendTo(nil), key)
			return b.stay != nil && b.stay[at]
		}
		var common []uint64
		moved := 0
		for key, values := range from {
			if mine, ok := into[key]; ok && len(mine) == len(values) && !stays(b, key) && !stays(o, key) {
				common = append(common, key)
				moved += 4 * len(values)
			}
		}
		part := leastPart
		if rapid.Bool().Draw(t, "o has given values to another") {
			o.given, part = 4, leastMore
		}
		if moved == 0 || part*moved < len(o.sum) {
			common, moved = nil, 0
		}
		for _, key := range common {
			for i := range from[key] {
				into[key][i] += from[key][i]
				from[key][i] = 0
			}
		}
		if n := b.fold(o, add); n != moved {
			t.Fatalf("%d bytes are folded, want %d", n, moved)
		}
		if got := fmt.Sprint(valuesOf(b)); got != fmt.Sprint(into) {
			t.Errorf("the sum is %s, want %v", got, into)
		}
		if got := fmt.Sprint(valuesOf(o)); got != fmt.Sprint(from) {
			t.Errorf("left is %s, want %v", got, from)
		}
		for _, key := range common {
			if !stays(o, key) {
				t.Errorf("key %d can be given again", key)
			}
		}
		if n := b.fold(o, add); n != 0 {
			t.Errorf("%d bytes are folded again", n)
		}
	})
}

// Values that cannot be told apart by keys are not laid out.
func TestLayOut(t *testing.T) {
	keys := pslite.AppendKeys(nil, []uint64{3, 5, 9})
	for name, c := range map[string]struct {
		s    subject
		want int
	}{
		"equal rows":         {subject{kind: pslite.Float, keys: keys, size: 24}, 8},
		"half a number":      {subject{kind: pslite.Float, keys: keys, size: 18}, 0},
		"a rest":             {subject{kind: pslite.Float, keys: keys, size: 28}, 0},
		"lens":               {subject{kind: pslite.Float, keys: keys, size: 24, lens: pslite.AppendLens(nil, []int32{1, 0, 5})}, 4},
		"other lens":         {subject{kind: pslite.Float, keys: keys, size: 24, lens: pslite.AppendLens(nil, []int32{1, 0, 4})}, 0},
		"a lens below 0":     {subject{kind: pslite.Float, keys: keys, size: 24, lens: pslite.AppendLens(nil, []int32{1, -1, 6})}, 0},
		"too few lens":       {subject{kind: pslite.Float, keys: keys, size: 24, lens: pslite.AppendLens(nil, []int32{1, 5})}, 0},
		"halves of a number": {subject{kind: pslite.Char, keys: keys, size: 24, lens: pslite.AppendLens(nil, []int32{2, 2, 20})}, 0},
		"keys that descend":  {subject{kind: pslite.Float, keys: pslite.AppendKeys(nil, []uint64{3, 9, 5}), size: 24}, 0},
		"a key twice":        {subject{kind: pslite.Float, keys: pslite.AppendKeys(nil, []uint64{3, 3, 5}), size: 24}, 0},
		"no keys":            {subject{kind: pslite.Float, size: 24}, 0},
	} {
		if c.s.layOut(4); c.s.row != c.want {
			t.Errorf("%s: rows of %d bytes, want %d", name, c.s.row, c.want)
		}
	}
}

// round has some workers push a list each, all of which come to the server without any time
// passing, and returns how many keys with values other than 0 it gets.
func (w *world) round(lists ...int) int {
	w.t.Helper()
	before := w.rows
	for i, list := range lists {
		w.pushes(w.workers[i], list)
		w.show(w.workers[i])
	}
	w.carry()
	for _, k := range w.workers {
		for _, m := range k.mine {
			if !m.done || !w.isWhole(m) {
				w.fail("worker %d ts %d: heard %v, applied to %d keys", k.id, m.ts, m.done, w.applied(m))
			}
		}
	}
	return w.rows - before
}

// carry has all that is due come to the server, and its answers back, without any time passing.
func (w *world) carry() {
	for range 4 * len(w.workers) {
		for _, k := range w.workers {
			w.due(k)
			if k.out != nil {
				k.link, k.out = append(k.link, k.out...), nil
				k.queue.Written()
			}
			w.arrive(k)
			w.answer(k)
		}
	}
}

// newLists returns a world of workers that have pushed all keys, of other lists.
func newLists(t *testing.T, wait time.Duration) *world {
	w := newWorld(t, 3, 4, wait, true)
	for _, k := range w.workers {
		for key := range uint64(10) {
			k.queue.seen.addKey(0, key)
			k.pushed[key] = true
		}
	}
	return w
}

// forget has the lists that were pushed be new again.
func (w *world) forget() {
	for _, k := range w.workers {
		clear(k.queue.seen.lists)
	}
}

// Workers that push ever new lists wait for each other, as those do that push the same, and the
// values of each key of a step go once.
func TestDifferingLists(t *testing.T) {
	w := newLists(t, time.Hour)
	// Nobody is known to push new lists yet: the first push waits for no other.
	w.round(1, 2, 4, 1)
	w.forget()
	if n := w.round(1, 2, 4, 1); n != 7 {
		w.fail("%d keys have values, want 7: 1 2 3 4 5 6 9", n)
	}
	if c := w.group.figures(); c.Carried == 0 || c.Partial == 0 || c.Lost > 0 || c.HeldBytes > 0 {
		t.Errorf("%+v", c)
	}
}

// No push waits for a worker that has pushed in the same step already, and each wait for one that
// does not come is the only one: not until it has pushed again.
func TestNobodyWaitsInVainTwice(t *testing.T) {
	w := newLists(t, time.Hour)
	for i := range w.workers {
		w.pushes(w.workers[i], 0)
		w.show(w.workers[i])
		w.carry()
		if m := w.workers[i].mine[0]; !m.done {
			w.fail("worker %d waits for those that have pushed", w.workers[i].id)
		}
	}
	w.forget()
	w.round(0, 1, 2, 4)
	// The last worker does not come.
	w.forget()
	for i := range 3 {
		w.pushes(w.workers[i], i)
		w.show(w.workers[i])
	}
	w.carry()
	if w.workers[0].mine[2].there {
		w.fail("nobody waits for the last worker")
	}
	w.now = w.now.Add(time.Hour)
	w.tick()
	w.carry()
	w.forget()
	w.round(0, 1, 2)
	// When it comes again it is waited for again.
	w.forget()
	if n := w.round(0, 1, 2, 4); n != 7 {
		w.fail("%d keys have values, want 7: 1 2 3 4 5 6 9", n)
	}
	w.forget()
	w.pushes(w.workers[0], 0)
	w.show(w.workers[0])
	w.carry()
	if w.workers[0].mine[5].there {
		w.fail("nobody waits for the others")
	}
}

// A push that is too small to be summed is of a step, too: the others of that step do not wait for
// its worker.
func TestNobodyWaitsForSmallPushes(t *testing.T) {
	w := newLists(t, time.Hour)
	w.round(0, 1, 2, 4) // from now on lists vary
	w.forget()
	small := w.table.opts.Least
	w.table.opts.Least = 3 * row
	w.pushes(w.workers[2], 2) // of two keys
	w.show(w.workers[2])
	w.table.opts.Least = small
	for i, list := range []int{0, 1} {
		w.pushes(w.workers[i], list)
		w.show(w.workers[i])
	}
	w.carry()
	if w.workers[0].mine[1].there {
		w.fail("nobody waits for the last worker")
	}
	w.pushes(w.workers[3], 4)
	w.show(w.workers[3])
	w.carry()
	for _, k := range w.workers {
		if m := k.mine[1]; !m.done || !w.isWhole(m) {
			w.fail("worker %d waits for one whose push was small", k.id)
		}
	}
}

// parts has the requests of parts, by timestamp.
type parts map[int32]int32

func (p parts) Whole(part int32) (timestamp int32, ok bool) {
	timestamp, ok = p[part]
	return timestamp, ok
}

func (p parts) Settled() bool { return true }
func (p parts) Assigns() bool { return false }

// The parts of one request are of one step: the second does not wait for those who have pushed in it.
// A message of the router's that is no part goes as it is.
func TestPartsOfARequestAreOfOneStep(t *testing.T) {
	w := newLists(t, time.Hour)
	w.round(0, 1, 2, 4) // from now on lists vary
	w.forget()
	known := parts{}
	w.workers[0].queue.link.Routes = known
	part := func(list int, whole int32) {
		k := w.workers[0]
		w.pushes(k, list)
		m := k.mine[len(k.mine)-1]
		m.ts = route.FirstOwn + m.ts
		if m.frames[0] = meta(m.ts, true, true); whole >= 0 {
			known[m.ts] = whole
		}
		w.show(k)
	}
	part(2, 100)
	for i, list := range []int{1, 1, 4} {
		w.pushes(w.workers[1+i], list)
		w.show(w.workers[1+i])
	}
	w.carry()
	part(0, 100)
	w.carry()
	if m := w.workers[0].mine[2]; !m.done || !w.isWhole(m) {
		w.fail("the second part waits for workers that have pushed in the same step")
	}
	before := w.group.figures()
	part(3, -1)
	w.carry()
	if c := w.group.figures(); c.Passed[Elsewhere] != before.Passed[Elsewhere]+1 || !w.workers[0].mine[3].done {
		t.Errorf("a push that is no part: %+v, before: %+v", c, before)
	}
}

// The values that a connection pushes first for a key are not summed, and the bounds on what is
// remembered hold.
func TestKnown(t *testing.T) {
	of := func(first, n uint64) subject {
		var keys []uint64
		for key := range n {
			keys = append(keys, first+key)
		}
		return subjectOf(&pslite.Message{Data: [][]byte{pslite.AppendKeys(nil, keys), nil}}, Least)
	}
	k := newKnown()
	a := of(0, 80)
	if k.recognize(&a) || a.stay != nil {
		t.Error("a connection's first push is recognized")
	}
	k.learn(&a)
	if b := of(0, 80); !k.recognize(&b) || b.isNew || b.stay != nil {
		t.Errorf("a list that was pushed before: %v, %v", b.isNew, b.stay)
	}
	if b := of(10, 70); !k.recognize(&b) || !b.isNew || b.stay != nil {
		t.Errorf("a part of a list: %v, %v", b.isNew, b.stay)
	}
	b := of(70, 80) // an eighth is known
	if !k.recognize(&b) || slices.Index(b.stay, true) != 10 || slices.Contains(b.stay[10:], false) {
		t.Errorf("a list of new and old keys: %v", b.stay)
	}
	if b := of(71, 80); k.recognize(&b) {
		t.Error("a list is recognized of which hardly a key was pushed")
	}
	for i := range uint64(maxLists + 10) {
		s := of(100+3*i, 3)
		k.learn(&s)
	}
	if len(k.lists) > maxLists || k.count != maxKeys {
		t.Errorf("%d lists and %d keys are remembered", len(k.lists), k.count)
	}
}
