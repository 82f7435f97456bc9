package aggregate

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// carries has the first of a job's workers carry the second's push of the same keys. The sum is on
// its way.
func carries(t *testing.T) (w *world, first, second *worker) {
	w = newWorldOf(t, 1, 2, 0, false, true)
	w.calm = true
	first, second = w.workers[0], w.workers[1]
	w.together()
	w.tick()
	w.due(first)
	w.write(first)
	if len(w.group.sent) != 1 || w.files() != 1 {
		w.fail("%d sums are on their way, there are %d records", len(w.group.sent), w.files())
	}
	return w, first, second
}

// together has all workers push the same keys while the first one's link is busy.
func (w *world) together() {
	for _, k := range w.workers {
		w.show(k) // it connects, if it has to
	}
	w.workers[0].unsent = lowWater + 1
	for _, k := range w.workers {
		w.pushes(k, 0)
		w.show(k)
	}
	w.workers[0].unsent = 0
}

// again has workers repeat what is not acknowledged, until nothing happens any more.
func (w *world) again() {
	for range 40 {
		for _, k := range w.workers {
			for _, m := range k.mine {
				if !m.done || !m.acked {
					w.repeatOne(k, m)
				}
			}
		}
		w.settleFor(5)
	}
}

// The job is killed with its proxy while a sum is on its way, and starts again at the same addresses: what
// the first run has left concerns no push of the second, though all are the same.
func TestSecondRunAtOneAddress(t *testing.T) {
	w, _, _ := carries(t)
	w.kill(false)
	w.store = map[uint64]*[places]int64{}
	for _, list := range lists {
		for _, key := range list {
			w.store[key] = new([places]int64)
		}
	}
	w.next = 0
	w.meet()
	for _, k := range w.workers {
		k.mine, k.messages, k.ts = nil, nil, k.ts-1
		w.pushes(k, 0)
	}
	w.again()
	w.check(true)
	if w.files() > 0 {
		w.fail("the first run's records are still there")
	}
	// Its own pushes are summed, whatever the first run's timestamps were.
	w.together()
	w.again()
	w.check(true)
	if c := w.group.figures(); c.Sums == 0 {
		w.fail("%+v", c)
	}
}

// Where a carrier's worker has gone for good the others wait no longer than goneAfter.
func TestCarriersWorkerIsGone(t *testing.T) {
	for _, arrives := range []bool{true, false} {
		w, first, second := carries(t)
		if arrives {
			w.arrive(first)
		}
		w.cut(first)
		w.workers = w.workers[1:]
		for range int(goneAfter/(50*time.Millisecond)) - 20 {
			w.now = w.now.Add(50 * time.Millisecond)
			w.tick()
			w.due(second)
		}
		if len(second.out)+len(second.link) > 0 || len(w.group.sent) != 1 {
			w.fail("the second push goes before it is known that the first one's worker is gone")
		}
		w.now = w.now.Add(5 * time.Second)
		w.tick()
		w.due(second)
		w.write(second)
		w.arrive(second)
		if m := second.mine[0]; !m.there || w.isWhole(m) != arrives {
			w.fail("the second push has arrived: %v, its values: %v", m.there, w.isWhole(m))
		}
		if c := w.group.figures(); c.Lost != 1 {
			w.fail("%+v", c)
		}
	}
}

// Where a record cannot be written the sum goes, once, and no others after it.
func TestRecordCannotBeWritten(t *testing.T) {
	w := newWorldOf(t, 1, 2, 0, false, true)
	w.calm = true
	first := w.workers[0]
	w.together()
	w.tick()
	// In place of its directory there is a file.
	if err := os.RemoveAll(w.group.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.group.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.due(first)
	w.write(first)
	w.cut(first) // it is repeated, too
	w.again()
	w.check(true)
	if w.group.off != Unkept {
		w.fail("the group is off for %q", w.group.off)
	}
}

// A proxy that cannot write which pushes it has seen sums nothing more of the worker.
func TestPastCannotBeWritten(t *testing.T) {
	w := newWorldOf(t, 1, 2, 0, false, true)
	w.calm = true
	if err := os.WriteFile(filepath.Join(filepath.Dir(w.file), sumsDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.together()
		w.again()
	}
	w.check(true)
	for _, p := range w.group.pairs {
		if !p.blind {
			w.fail("worker %d's pushes can be summed", p.worker)
		}
	}
}

// A proxy that does not know which pushes came before it sums nothing of the worker, nor does one for
// which the job starts in the middle.
func TestPastIsUnknown(t *testing.T) {
	w := newWorldOf(t, 1, 2, 0, false, true)
	w.calm = true
	if err := os.RemoveAll(filepath.Join(filepath.Dir(w.file), sumsDir)); err != nil {
		t.Fatal(err)
	}
	w.kill(false)
	for range 3 {
		w.together()
		w.again()
	}
	w.check(true)
	if c := w.group.figures(); c.Sums > 0 || c.Passed[Repeats] == 0 {
		w.fail("%+v", c)
	}
}

// A worker with more customers than are remembered is not summed, by the next proxy either.
func TestPastOfTooManyCustomers(t *testing.T) {
	w := newWorldOf(t, 1, 2, 0, false, true)
	q := w.workers[0].queue
	see := func(customer int32) {
		w.group.mu.Lock()
		defer w.group.mu.Unlock()
		m := pslite.Message{Meta: pslite.Meta{CustomerID: customer, Timestamp: 1}}
		q.see(&m)
	}
	file := w.group.pastFile(q.pair)
	for customer := range int32(maxPastLines) {
		see(customer)
	}
	if _, err := os.Stat(file); err != nil || q.pair.blind {
		t.Fatalf("blind: %v; %v", q.pair.blind, err)
	}
	see(maxPastLines)
	if _, err := os.Stat(file); !os.IsNotExist(err) || !q.pair.blind {
		t.Errorf("blind: %v; %v", q.pair.blind, err)
	}
}

// A push that is repeated while there is no memory to hold it does not pass: its connection ends.
func TestRepeatedPushIsNotHeld(t *testing.T) {
	w, first, _ := carries(t)
	m := first.mine[0]
	rest := &relay.Message{Frames: m.frames[:2], Rest: true, Next: uint64(len(m.frames[2]))}
	if !first.queue.Wants(rest) {
		w.fail("a repeated push need not be held")
	}
	if first.queue.Take(rest) != relay.Waits || first.queue.failed == nil {
		w.fail("a repeated push passes")
	}
	w.due(first)
	w.again()
	w.check(true)
}

// meet has all workers start, and get their node tables.
func (w *world) meet() {
	var m pslite.Meta
	m.Reset()
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{{Role: pslite.Scheduler, ID: 1, Hostname: "10.0.0.1", Port: 7001}, {Role: pslite.Server, ID: 8, Hostname: "10.0.0.1", Port: 7008}}
	for i := range w.size {
		id := pslite.WorkerID(i)
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{Role: pslite.Worker, ID: id, Hostname: "10.0.0.1", Port: 7000 + id})
	}
	for i := range w.size {
		h := w.table.Hearer(scope, address(int(pslite.WorkerID(i))))
		h.Ready(zmtp.Ready{Identity: []byte("ps1")})
		h.Hear(m.Append(nil, pslite.DMLC))
	}
}

// A server that waits for all workers' pushes is found by its ACKs, and where these are unlike PS-lite's
// after goneAfter, although workers repeat what it has.
func TestSynchronousServerThatAcknowledges(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		w := newWorldOf(t, 1, 2, 0, false, true)
		w.calm, w.waits, w.foreign = true, true, foreign
		w.together()
		waited := time.Duration(0)
		for ; w.group.off == "" && waited < 2*goneAfter; waited += time.Second {
			for _, k := range w.workers {
				for _, m := range k.mine {
					w.repeatOne(k, m)
				}
			}
			for range 20 {
				w.now = w.now.Add(50 * time.Millisecond)
				w.tick()
				for _, k := range w.workers {
					w.show(k)
					w.write(k)
					w.arrive(k)
					w.answer(k)
				}
			}
		}
		if least := map[bool]time.Duration{false: 0, true: goneAfter - 2*time.Second}[foreign]; w.group.off != Sums || waited < least || waited > least+5*time.Second {
			w.fail("after %v the group is off for %q", waited, w.group.off)
		}
		w.again()
		w.check(true)
	}
}
