package aggregate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// lose is what PS_RESEND does at the server with a push that arrives: the first is acknowledged and
// applied, the others are acknowledged. It returns true where the push goes no further. Some are
// lost before.
func (w *world) lose(k *worker, m flight) bool {
	if w.rng.IntN(8) == 0 {
		w.note("the server loses worker %d ts %d", k.id, m.ts)
		return true
	}
	var d pslite.Message
	if _, err := d.Decode(new(pslite.Detector), m.frames); err != nil {
		w.t.Fatal(err)
	}
	k.back = append(k.back, answer{of: m.sent, meta: ackOf(pslite.Signature(&d.Meta, k.id, 8)), isAck: true})
	if m.there {
		w.note("the server has worker %d ts %d already", k.id, m.ts)
	}
	return m.there
}

func ackOf(sig uint64) []byte {
	var ack pslite.Meta
	ack.Reset()
	ack.Control = pslite.Control{Cmd: pslite.Ack, MsgSig: sig}
	return ack.Append(nil, pslite.DMLC)
}

// repeat has a worker repeat a push that was not acknowledged, or the server an answer that the worker has
// not got.
func (w *world) repeat(k *worker, m *sent) {
	for _, o := range k.messages {
		if o == m { // it has not left the worker yet
			return
		}
	}
	if !m.acked {
		w.note("worker %d repeats ts %d", k.id, m.ts)
		k.messages = append(k.messages, m)
	}
	if m.there && !m.done {
		k.back = append(k.back, answer{of: m, meta: meta(m.ts, false, true)})
	}
}

// Nothing of a job with PS_RESEND is summed, whatever is lost or repeated and whichever connections break,
// also with ACKs lost on them: each push is applied once, heard of when it was, and seen by its worker's
// next pull.
func TestSchedulesWithRetransmissions(t *testing.T) {
	runs := uint64(1000)
	if testing.Short() {
		runs = 200
	}
	var all Counts
	alone := 0
	for seed := range runs {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newUntested(t, seed, 2+rng.IntN(3), []time.Duration{0, 0, 30 * time.Millisecond}[rng.IntN(3)], rng.IntN(2) == 0, false)
		w.resend, w.breaks = true, rng.IntN(8)
		for range 400 {
			if k := w.workers[w.rng.IntN(len(w.workers))]; len(k.mine) > 0 && w.rng.IntN(8) == 0 {
				w.repeat(k, k.mine[w.rng.IntN(len(k.mine))])
			} else {
				w.step()
			}
			if w.group.alone != nil {
				alone++
			}
		}
		for range 60 {
			for _, k := range w.workers {
				for _, m := range k.mine {
					if !m.done || !m.acked {
						w.repeat(k, m)
					}
				}
			}
			w.settleFor(5)
		}
		w.check(true)
		all.addCounts(w.group.figures())
	}
	t.Logf("%+v", all)
	if all.Passed[Resend] == 0 || alone == 0 {
		t.Errorf("%+v, %d steps with a push that goes alone: not all has been tried", all, alone)
	}
	if all.Sums+all.Carried+all.Partial+all.Lost > 0 {
		t.Errorf("%+v: pushes are summed", all)
	}
}

// The scheduler acknowledges, too, before there is any push.
func TestSchedulersAcknowledgement(t *testing.T) {
	w := newUntested(t, 1, 2, 0, false, false)
	h := w.table.Hearer(scope, address(int(w.workers[0].id)))
	h.Ready(zmtp.Ready{Identity: []byte("ps1")})
	h.Hear(ackOf(1))
	w.together()
	w.settle()
	w.check(true)
	if c := w.group.figures(); c.Passed[Resend] != 2 {
		w.fail("%+v", c)
	}
	if why, ok := w.workers[0].queue.Said(); why != Resend || !ok {
		t.Errorf("the reason is %q, want %q", why, Resend)
	}
}
